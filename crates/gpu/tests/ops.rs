//! Every op on the GPU of this machine against exact arithmetic, on odd shapes (accuracy contract, level C).

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use lowbit_core::PackedMatrix;
use lowbit_core::backend::{AttentionShape, Backend, Gate, Heads, Norm, RopeStyle, RopeTable, at_once};
use lowbit_core::format::{FORMATS, Format};
use lowbit_core::kernels::selftest::sample;
use lowbit_gpu::{Extensions, GpuBackend, Kernels, Native, Shader};
use std::cell::Cell;
use support::{
    EXTENDED, Exact, KERNELS, Narrow, gpu, narrow, native, product, tensor, upload, values, weights,
};

/// Columns, inputs, rows: of one workgroup and less, of several and a piece.
fn shapes() -> impl Iterator<Item = (usize, usize, usize)> {
    let sizes = |n| [32, 40, 96, 576].into_iter().map(move |k| (n, k));
    let few = [1, 15, 17, 48].into_iter().flat_map(sizes);
    few.flat_map(|(n, k)| [1, 2, 5].into_iter().map(move |m| (n, k, m))).chain([
        (1, 40, 16),
        (65, 32, 64),
        (83, 96, 67),
        (130, 200, 17),
    ])
}

#[test]
fn every_shader_compiles_on_a_device_with_no_more_than_it_asks_for() {
    let (mut plain, mut device) = (Native::with(Extensions::NONE).unwrap(), native());
    assert_eq!(plain.features().extensions, Extensions::NONE);
    let offered = device.features();
    for shader in Shader::all() {
        let asks = shader.extensions();
        let native = if asks == Extensions::NONE { &mut plain } else { &mut device };
        if offered.has(asks) {
            native.compile(shader).unwrap_or_else(|error| panic!("{shader}: {error}"));
        }
    }
}

#[test]
fn a_device_without_extensions_refuses_shaders_that_ask_for_them() {
    for extensions in [Extensions { subgroups: true, f16: false }, Extensions { subgroups: false, f16: true }]
    {
        let shader = Shader::all().into_iter().find(|shader| shader.extensions() == extensions).unwrap();
        let error = Native::with(Extensions::NONE).unwrap().compile(shader).unwrap_err();
        assert_eq!(error.code(), "device", "{shader}");
    }
}

/// Queries, keys and values of a row, rotated and in the cache, as attention over the whole cache shows them.
#[test]
fn one_dispatch_gives_what_products_and_rotary_embedding_give() {
    let heads = [(RopeStyle::Half, 32), (RopeStyle::Half, 96), (RopeStyle::Interleaved, 20)];
    for kernels in KERNELS {
        let (mut gpu, max_binding) = narrow(kernels);
        let formats = FORMATS.iter().map(|spec| spec.format);
        for (format, (style, head_dim)) in formats.zip(heads.into_iter().cycle()) {
            let shape = AttentionShape { n_heads: 6, n_kv_heads: 3, head_dim, window: None };
            let mut run = |cut| queries_and_attention(&mut gpu, &max_binding, format, style, shape, cut);
            let (one, two) = (run(false), run(true));
            let most = two.iter().fold(0f32, |most, v| most.max(v.abs()));
            assert_eq!(one.len(), two.len());
            for (i, (one, two)) in one.iter().zip(&two).enumerate() {
                assert!(
                    (one - two).abs() <= 1e-3 * most,
                    "{kernels}, {style:?} {shape:?} {format:?} value {i}: {one}, in two {two}, at most {most}"
                );
            }
        }
    }
}

/// Of some rows, one after the other. Matrices that are cut take a dispatch each, and rotary embedding another one.
fn queries_and_attention(
    gpu: &mut GpuBackend<Narrow>,
    max_binding: &Cell<u64>,
    format: Format,
    style: RopeStyle,
    shape: AttentionShape,
    cut: bool,
) -> Vec<f32> {
    let (width, capacity) = (64usize.next_multiple_of(format.k_multiple()), 5);
    let AttentionShape { n_heads, n_kv_heads, head_dim, .. } = shape;
    let matrices = [n_heads, n_kv_heads, n_kv_heads].map(|n| sample(format, n * head_dim, width, n as u64));
    let [q, k, v] = matrices.each_ref().map(|w| upload(gpu, max_binding, w, cut));
    let weight = gpu.vector(vec![0.01; width]).unwrap();
    let norm = Norm { weight: &weight, eps: 1e-5 };
    let rope = gpu.rope(rope_table(style, head_dim, capacity)).unwrap();
    let mut kv = gpu.kv(shape, capacity).unwrap();
    let (mut queries, mut out, mut found) = (gpu.tensor(), gpu.tensor(), Vec::new());
    for (pos, row) in values(capacity * width, 53).chunks(width).enumerate() {
        let x = tensor(gpu, row, width);
        gpu.attention_input(
            &x,
            norm,
            [&q, &k, &v],
            Heads { norms: None, rope: &rope },
            pos,
            &mut kv,
            &mut queries,
        )
        .unwrap();
        found.extend(gpu.read(&queries).unwrap());
        let plan = gpu.last_plan().to_string();
        assert_eq!([plan.contains("qkv_rope"), plan.contains("rope_append")], [!cut, cut], "{plan}");
        gpu.attention(&queries, &kv, pos, &mut out).unwrap();
        found.extend(gpu.read(&out).unwrap());
    }
    found
}

fn rope_table(style: RopeStyle, head_dim: usize, positions: usize) -> RopeTable {
    let pairs = head_dim / 2;
    let angle = |i: usize| (i / pairs) as f64 * 0.5f64.powi((i % pairs) as i32);
    let of = |f: fn(f64) -> f64| (0..positions * pairs).map(|i| f(angle(i)) as f32).collect();
    RopeTable { style, head_dim, cos: of(f64::cos), sin: of(f64::sin) }
}

#[test]
fn products_of_every_format_are_within_their_bound() {
    for kernels in KERNELS {
        let mut gpu = gpu(kernels);
        for format in FORMATS.iter().map(|spec| spec.format) {
            for (n, k, m) in shapes() {
                let k = k.next_multiple_of(format.k_multiple());
                let w = sample(format, n, k, (n * k) as u64);
                let (rows, before) = (values(m * k, 3), values(m * n, 5));
                let y = tensor(&mut gpu, &rows, k);
                let mut x = tensor(&mut gpu, &before, n);
                let matrix = gpu.matrix(w.clone()).unwrap();
                gpu.linear_add(&y, &matrix, &mut x).unwrap();
                let found = gpu.read(&x).unwrap();
                assert_eq!(found.len(), m * n);
                for (i, found) in found.iter().enumerate() {
                    let Exact { value, bound } = product(kernels, &rows[i / n * k..][..k], &w, i % n);
                    let value = value + f64::from(before[i]);
                    let bound = bound + 2f64.powi(-24) * value.abs();
                    let off = (f64::from(*found) - value).abs();
                    assert!(
                        off <= bound,
                        "{kernels}: {format:?} {n} x {k}, {m} rows, value {i}: {found}, exactly {value} +- {bound:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn rows_of_tables_are_what_the_format_says() {
    let mut gpu = gpu(Kernels::default());
    for format in FORMATS.iter().map(|spec| spec.format) {
        let (n, k) = (83, 40usize.next_multiple_of(format.k_multiple()));
        let w = sample(format, n, k, 7);
        let table = gpu.matrix(w.clone()).unwrap();
        let (ids, mut x) = ([82, 0, 15, 16, 33, 33], gpu.tensor());
        gpu.embed(&table, &ids, 2.0, &mut x).unwrap();
        let found = gpu.read(&x).unwrap();
        assert_eq!(found.len(), ids.len() * k);
        for (id, found) in ids.iter().zip(found.chunks(k)) {
            let (scaled, mins) = weights(&w, *id as usize);
            for ((found, scaled), min) in found.iter().zip(scaled).zip(mins) {
                let expected = 2.0 * (scaled + min);
                let off = (f64::from(*found) - expected).abs();
                assert!(
                    off <= 2f64.powi(-22) * (scaled.abs() + min.abs()),
                    "{format:?} row {id}: {found}, exactly {expected}"
                );
            }
        }
    }
}

#[test]
fn gated_products_are_within_their_bound() {
    let kernels = Kernels::default();
    let mut gpu = gpu(kernels);
    let formats = [(Format::Q4m, Format::Q4m), (Format::Q4, Format::Q8), (Format::F16, Format::Q5)];
    for (act, (gate_format, up_format)) in
        [Gate::Silu, Gate::GeluTanh].into_iter().flat_map(|act| formats.map(|f| (act, f)))
    {
        for (n, k, m) in shapes() {
            let (gate, up) = (sample(gate_format, n, k, 11), sample(up_format, n, k, 13));
            let rows = values(m * k, 17);
            let x = tensor(&mut gpu, &rows, k);
            let weight = gpu.vector(values(k, 19)).unwrap();
            let norm = Norm { weight: &weight, eps: 1e-5 };
            let matrices = [gpu.matrix(gate.clone()).unwrap(), gpu.matrix(up.clone()).unwrap()];
            let mut out = gpu.tensor();
            gpu.gated(&x, norm, act, [&matrices[0], &matrices[1]], &mut out).unwrap();
            let found = gpu.read(&out).unwrap();
            assert_eq!(found.len(), m * n);
            for (i, found) in found.iter().enumerate() {
                let normed = rms_norm(&rows[i / n * k..][..k], &values(k, 19), 1e-5);
                let (g, u) = (product(kernels, &normed, &gate, i % n), product(kernels, &normed, &up, i % n));
                let activated = activation(act, g.value);
                let value = activated * u.value;
                // Neither activation is steeper than 1.2.
                let norm_error = (k + 8) as f64 * 2f64.powi(-24);
                let (g_bound, u_bound) =
                    (g.bound * (1.0 + norm_error * 1e3), u.bound * (1.0 + norm_error * 1e3));
                let bound = 1.2 * g_bound * u.value.abs()
                    + u_bound * activated.abs()
                    + 8e-6 * value.abs()
                    + g_bound * u_bound
                    + 2.0 * norm_error * (value.abs() + 1.2 * g.value.abs() * u.value.abs())
                    + 1e-7 * u.value.abs();
                let off = (f64::from(*found) - value).abs();
                assert!(
                    off <= bound,
                    "{act:?} {gate_format:?} {up_format:?} {n} x {k}, value {i}: {found}, exactly {value} +- {bound:e}"
                );
            }
        }
    }
}

fn activation(act: Gate, v: f64) -> f64 {
    match act {
        Gate::Silu => v / (1.0 + (-v).exp()),
        Gate::GeluTanh => {
            0.5 * v * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v * v * v)).tanh())
        }
    }
}

fn rms_norm(x: &[f32], weight: &[f32], eps: f64) -> Vec<f32> {
    let square = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (square + eps).sqrt();
    x.iter().zip(weight).map(|(x, w)| (f64::from(*x) * factor * f64::from(*w)) as f32).collect()
}

/// Attention of some tokens after others, for both rotary styles, against the formulas in f64.
#[test]
fn attention_is_within_its_bound() {
    for (style, n_heads, n_kv_heads, head_dim, extensions) in [
        (RopeStyle::Interleaved, 4, 2, 16, EXTENDED),
        (RopeStyle::Half, 3, 3, 10, Extensions::NONE),
        (RopeStyle::Half, 4, 1, 64, Extensions { f16: true, subgroups: false }),
        (RopeStyle::Half, 6, 1, 128, Extensions::NONE),
        (RopeStyle::Half, 6, 1, 128, EXTENDED),
        (RopeStyle::Interleaved, 2, 1, 256, Extensions::NONE),
        (RopeStyle::Half, 6, 1, 320, EXTENDED),
    ] {
        let (mut gpu, max_binding) = narrow(Kernels { extensions, ..Kernels::default() });
        let shape = AttentionShape { n_heads, n_kv_heads, head_dim, window: None };
        let (width, kv_width, capacity) = (n_heads * head_dim, n_kv_heads * head_dim, 300);
        let table = rope_table(style, head_dim, capacity);
        let matrices = [width, kv_width, kv_width].map(|n| sample(Format::Q8, n, 64, n as u64 + 1));
        // Such weights give values of some hundreds; attention wants scores of some units.
        let weight = vec![0.004; 64];
        let vector = gpu.vector(weight.clone()).unwrap();
        let norm = Norm { weight: &vector, eps: 0.0 };
        let cut = head_dim > 100 && style == RopeStyle::Half;
        let on_gpu = matrices.each_ref().map(|w| upload(&gpu, &max_binding, w, cut));
        let rope = gpu.rope(table.clone()).unwrap();
        let mut kv = gpu.kv(shape, capacity).unwrap();
        let rows = values(capacity * 64, 23);
        let (mut queries, mut out, mut found) = (gpu.tensor(), gpu.tensor(), Vec::new());
        let mut pos = 0;
        // Of few rows and of many, before, across and after the borders of splits.
        for chunk in [70, 1, 3, 52, 4, 1, 70, 57, 1, 1, 40] {
            let x = tensor(&mut gpu, &rows[pos * 64..][..chunk * 64], 64);
            let qkv = [&on_gpu[0], &on_gpu[1], &on_gpu[2]];
            gpu.attention_input(
                &x,
                norm,
                qkv,
                Heads { norms: None, rope: &rope },
                pos,
                &mut kv,
                &mut queries,
            )
            .unwrap();
            gpu.attention(&queries, &kv, pos, &mut out).unwrap();
            found.extend(gpu.read(&out).unwrap());
            pos += chunk;
        }
        let expected = reference_attention(&rows, &weight, &matrices, &table, shape);
        let most = expected.iter().fold(0f64, |most, v| most.max(v.abs()));
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let off = (f64::from(*found) - expected).abs();
            assert!(
                off <= 2e-3 * most,
                "{style:?} {shape:?} value {i}: {found}, exactly {expected}, at most {most}"
            );
        }
        assert_eq!(found.len(), expected.len());
    }
}

fn reference_attention(
    rows: &[f32],
    weight: &[f32],
    matrices: &[PackedMatrix; 3],
    rope: &RopeTable,
    shape: AttentionShape,
) -> Vec<f64> {
    let AttentionShape { n_heads, n_kv_heads, head_dim, .. } = shape;
    let project = |w: &PackedMatrix| -> Vec<Vec<f64>> {
        let row = |x: &[f32]| {
            (0..w.n).map(|n| product(Kernels::default(), &rms_norm(x, weight, 0.0), w, n).value).collect()
        };
        rows.chunks(64).map(row).collect()
    };
    let rotate = |pos: usize, head: &[f64]| -> Vec<f64> {
        let pairs = head_dim / 2;
        let mut out = head.to_vec();
        for i in 0..pairs {
            let (a, b) = match rope.style {
                RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                RopeStyle::Half => (i, i + pairs),
            };
            let (cos, sin) = (f64::from(rope.cos[pos * pairs + i]), f64::from(rope.sin[pos * pairs + i]));
            (out[a], out[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
        }
        out
    };
    let rotated = |rows: Vec<Vec<f64>>| -> Vec<Vec<f64>> {
        rows.iter()
            .enumerate()
            .map(|(pos, row)| row.chunks(head_dim).flat_map(|head| rotate(pos, head)).collect())
            .collect()
    };
    let (queries, keys, values) =
        (rotated(project(&matrices[0])), rotated(project(&matrices[1])), project(&matrices[2]));
    let mut out = Vec::new();
    for (pos, query) in queries.iter().enumerate() {
        for (head, query) in query.chunks(head_dim).enumerate() {
            let at = head / (n_heads / n_kv_heads) * head_dim;
            let score = |key: &Vec<f64>| {
                query.iter().zip(&key[at..]).map(|(q, k)| q * k).sum::<f64>() / (head_dim as f64).sqrt()
            };
            let scores: Vec<f64> = keys[..=pos].iter().map(score).collect();
            let most = scores.iter().fold(f64::MIN, |a, b| a.max(*b));
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            out.extend(
                (0..head_dim)
                    .map(|i| weights.iter().zip(&values).map(|(w, v)| w * v[at + i]).sum::<f64>() / total),
            );
        }
    }
    out
}

#[test]
fn matrices_that_are_cut_give_the_same_values() {
    let n = 83;
    let formats = FORMATS.iter().map(|spec| spec.format);
    for (format, (kernels, m)) in formats.flat_map(|format| {
        KERNELS[..2].iter().flat_map(move |kernels| [5, 70].map(|m| (format, (*kernels, m))))
    }) {
        let k = 96usize.next_multiple_of(format.k_multiple());
        let [whole, cut] = [false, true].map(|cut| {
            let (mut gpu, max_binding) = narrow(kernels);
            let [a, b, c] =
                [29, 31, 37].map(|seed| upload(&gpu, &max_binding, &sample(format, n, k, seed), cut));
            let y = tensor(&mut gpu, &values(m * k, 41), k);
            let mut x = tensor(&mut gpu, &values(m * n, 43), n);
            gpu.linear_add(&y, &a, &mut x).unwrap();
            let mut found = gpu.read(&x).unwrap();
            let weight = gpu.vector(values(k, 47)).unwrap();
            let norm = Norm { weight: &weight, eps: 1e-5 };
            let (mut out, mut logits) = (gpu.tensor(), Vec::new());
            gpu.gated(&y, norm, Gate::Silu, [&a, &b], &mut out).unwrap();
            found.extend(gpu.read(&out).unwrap());
            gpu.logits(&y, 1..m, norm, &c).unwrap();
            at_once(gpu.take(&mut logits)).unwrap();
            found.extend(logits);
            gpu.embed(&c, &[82, 0, 40], 1.0, &mut out).unwrap();
            found.extend(gpu.read(&out).unwrap());
            assert_eq!(found.len(), m * n + m * n + (m - 1) * n + 3 * k);
            found
        });
        assert_eq!(whole, cut, "{format:?} {kernels} {m} rows");
    }
}

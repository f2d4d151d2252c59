#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::dry::Dry;

const DEPTH: usize = 1023;

const NOTHING: Features = Features { dot4: false, extensions: Extensions::NONE };
const DOT4: Features = Features { dot4: true, ..NOTHING };
const ALL: Features = Features { dot4: true, extensions: Extensions { subgroups: true, f16: true } };

/// Runs a search where a step takes what `step` says, in microseconds, and its trial ten times that. Returns it with the
/// trials that were made.
fn search(features: Features, budget_ms: u64, step: impl Fn(Trial) -> u64) -> (Tuning, Vec<Trial>) {
    let mut tuning = Tuning::new(features, DEPTH, Duration::from_millis(budget_ms));
    let mut device = GpuBackend::new(Dry::default());
    let mut trials = Vec::new();
    let result = tuning.poll(&mut device, |device, trial| {
        assert_eq!(device.kernels(), trial.kernels);
        trials.push(trial);
        let step = Duration::from_micros(step(trial));
        Poll::Ready(Ok::<_, ()>(StepTime { step, spent: 10 * step }))
    });
    assert_eq!(result, Poll::Ready(Ok(())));
    assert_eq!(device.kernels(), tuning.kernels());
    (tuning, trials)
}

/// A device on which GEMM is the quicker from `rows` rows on.
fn crossing(rows: usize) -> impl Fn(Trial) -> u64 {
    move |Trial { kernels, rows: n, .. }| {
        let (gemm, gemv) = (1000, 1000 * n as u64 / (rows as u64 - 1));
        if n >= kernels.gemm_rows { gemm } else { gemv }
    }
}

#[test]
fn gemm_begins_where_it_is_the_quicker() {
    for (crossing_at, expected) in [(4, 8), (10, 16), (30, 32), (50, 64), (100, 128), (1000, 256)] {
        let (tuning, _) = search(NOTHING, 500, crossing(crossing_at));
        assert_eq!(tuning.kernels().gemm_rows, expected, "where it is quicker from {crossing_at} rows on");
        assert!(tuning.is_complete());
    }
}

#[test]
fn what_makes_no_difference_stays_as_it_is_fixed() {
    for features in [NOTHING, DOT4, ALL] {
        let (tuning, _) = search(features, 500, |_| 100);
        assert_eq!(tuning.kernels(), Tuning::new(features, DEPTH, Duration::ZERO).kernels());
        // Nor does noise.
        let (tuning, _) = search(features, 500, |Trial { kernels, rows, .. }| {
            1000 + (kernels.gemm_rows % 7 + kernels.split % 5 + rows) as u64 % 40
        });
        assert_eq!(tuning.kernels(), Tuning::new(features, DEPTH, Duration::ZERO).kernels());
    }
}

#[test]
fn products_are_judged_by_prompt_and_answer_together() {
    // Bytes: slower by a half for one row, quicker for many; by how much decides.
    for (many, expected) in [(5000, Products::Dot4), (20_000, Products::Float)] {
        let (tuning, _) =
            search(DOT4, 10_000, |Trial { kernels, rows, .. }| match (rows > 1, kernels.products) {
                (false, Products::Float) => 100,
                (false, Products::Dot4) => 150,
                (true, Products::Float) => 10_000,
                (true, Products::Dot4) => many,
            });
        assert_eq!(tuning.kernels().products, expected);
    }
}

#[test]
fn bytes_are_never_tried_where_the_model_wants_floats() {
    let (tuning, trials) = search(NOTHING, 10_000, |trial| 1 + trial.rows as u64);
    assert_eq!(tuning.kernels().products, Products::Float);
    assert!(trials.iter().all(|trial| trial.kernels.products == Products::Float));
}

#[test]
fn attention_takes_the_best_split() {
    for best in [64, 128, 256, 512] {
        let (tuning, trials) =
            search(
                NOTHING,
                500,
                |Trial { kernels, pos, .. }| {
                    if pos == 0 { 100 } else { 100 + 10 * kernels.split.abs_diff(best) as u64 }
                },
            );
        assert_eq!(tuning.kernels().split, best);
        assert!(trials.iter().all(|trial| [0, DEPTH].contains(&trial.pos)));
    }
}

#[test]
fn without_time_the_choice_is_the_fixed_one_for_what_was_not_tried() {
    let step = |Trial { kernels, rows, pos }| match (rows, pos) {
        (32, _) if kernels.gemm_rows == 32 => 2000,
        (_, 0) => 1000,
        _ => 1000 * kernels.split as u64 / 64,
    };
    let (all, trials) = search(NOTHING, 10_000, step);
    assert_eq!((all.kernels().gemm_rows, all.kernels().split), (64, 64));
    // What a token takes is known all the same.
    let (none, basic) = search(NOTHING, 0, step);
    assert_eq!((basic.as_slice(), none.kernels()), (&trials[..2], Kernels::default()));
    assert!(none.token(1.0).is_some() && !none.is_complete());
    // Two steps of 32 rows.
    let (some, few) = search(NOTHING, 25, step);
    assert_eq!((few.as_slice(), some.is_complete()), (&trials[..4], false));
    assert_eq!((some.kernels().gemm_rows, some.kernels().split), (64, Kernels::default().split));
    assert_eq!(some.spent(), Duration::from_millis(30));
}

#[test]
fn a_trial_that_fails_ends_the_search_and_leaves_what_was_found() {
    let mut tuning = Tuning::new(NOTHING, DEPTH, Duration::from_secs(1));
    let mut device = GpuBackend::new(Dry::default());
    let mut left = 4;
    let result = tuning.poll(&mut device, |_, trial| {
        left -= 1;
        let step = Duration::from_micros(if trial.kernels.gemm_rows == 32 { 2000 } else { 1000 });
        Poll::Ready(if left < 0 { Err("lost") } else { Ok(StepTime { step, spent: step }) })
    });
    assert_eq!(result, Poll::Ready(Err("lost")));
    assert_eq!(tuning.kernels(), Kernels { gemm_rows: 64, ..Kernels::default() });
}

#[test]
fn a_pending_trial_is_the_next_one_again() {
    let mut tuning = Tuning::new(NOTHING, DEPTH, Duration::from_secs(1));
    let mut device = GpuBackend::new(Dry::default());
    let (mut trials, mut polls) = (Vec::new(), 0);
    while tuning
        .poll(&mut device, |_, trial| {
            trials.push(trial);
            let timing = StepTime { step: Duration::from_micros(100), spent: Duration::from_micros(100) };
            if trials.len() % 2 == 0 { Poll::Ready(Ok::<_, ()>(timing)) } else { Poll::Pending }
        })
        .is_pending()
    {
        polls += 1;
    }
    assert_eq!(polls, trials.len() / 2);
    assert!(trials.chunks(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_token_takes_the_way_there_and_back_and_all_its_weights() {
    let (tuning, _) = search(DOT4, 10_000, |Trial { kernels, rows, .. }| match (rows, kernels.products) {
        (0, _) => 300,
        (_, Products::Float) => 100,
        (_, Products::Dot4) => 200,
    });
    assert_eq!(tuning.token(8.0), Some(Duration::from_micros(300 + 800)));
    assert_eq!(Tuning::new(DOT4, DEPTH, Duration::ZERO).token(8.0), None);
}

#[test]
fn extensions_are_used_where_they_are_offered_and_quicker() {
    let quicker = |subgroups: u64, f16: u64| {
        move |Trial { kernels, pos, .. }: Trial| {
            let Extensions { subgroups: s, f16: h } = kernels.extensions;
            let read = if h && pos > 0 { f16 } else { 100 };
            read + if s { subgroups } else { 100 }
        }
    };
    for subgroups in [false, true] {
        for f16 in [false, true] {
            let expected = Extensions { subgroups, f16 };
            let [s, h] = [subgroups, f16].map(|is_quicker| if is_quicker { 50 } else { 98 });
            let (tuning, _) = search(ALL, 10_000, quicker(s, h));
            assert_eq!(tuning.kernels().extensions, expected);
            let offered = Features { dot4: false, extensions: expected };
            let (tuning, trials) = search(offered, 10_000, quicker(50, 50));
            assert_eq!(tuning.kernels().extensions, expected);
            assert!(trials.iter().all(|trial| offered.allow(trial.kernels)));
            assert!(tuning.token(1.0).is_some());
        }
    }
}

#[test]
fn choices_are_made_one_after_the_other() {
    let (_, trials) = search(ALL, 10_000, |_| 100);
    assert!(trials.len() <= 20, "{} trials", trials.len());
    let changed = |Kernels { products, extensions: Extensions { subgroups, f16 }, .. }: Kernels| {
        [products != Products::Dot4, subgroups, f16].into_iter().filter(|is_changed| *is_changed).count()
    };
    assert!(trials.iter().all(|trial| changed(trial.kernels) <= 1));
}

fn key() -> Key {
    Key::new("a device".into(), "a model".into(), NOTHING)
}

#[test]
fn a_record_serves_its_device_and_model_only() {
    let kernels = Kernels { gemm_rows: 64, ..Kernels::default() };
    let record = Record::new(key(), kernels, Some(Duration::from_millis(3)), None);
    let text = record.to_json();
    assert_eq!(Record::read(&text, &key()), Some(record));
    for other in [
        Key::new("another device".into(), "a model".into(), NOTHING),
        Key::new("a device".into(), "another model".into(), NOTHING),
        Key::new("a device".into(), "a model".into(), DOT4),
    ] {
        assert_ne!(other.to_string(), key().to_string());
        assert_eq!(Record::read(&text, &other), None);
    }
}

#[test]
fn a_damaged_record_is_none() {
    let text = Record::new(key(), Kernels::default(), None, None).to_json();
    for end in 0..text.len() {
        assert_eq!(Record::read(&text[..end], &key()), None);
    }
    for (sound, damaged) in [
        ("\"float\"", "\"dot4\""),
        ("\"gemm_rows\":32", "\"gemm_rows\":0"),
        ("\"gemm_rows\":32", "\"gemm_rows\":-1"),
        ("\"split\":128", "\"split\":0"),
        ("\"split\":128", "\"split\":100"),
        ("\"split\":128,\"extensions\":0", "\"split\":128,\"extensions\":1"),
        ("\"shaders\":\"", "\"shaders\":\"0"),
    ] {
        assert!(text.contains(sound), "{text}");
        assert_eq!(Record::read(&text.replace(sound, damaged), &key()), None, "{damaged}");
    }
}

#[test]
fn the_cpu_is_preferred_only_where_it_is_clearly_quicker() {
    let choice = |gpu: Option<u64>, cpu: Option<u64>, threads| {
        let [gpu, cpu] = [gpu, cpu].map(|time| time.map(Duration::from_millis));
        Choice::of(&Record::new(key(), Kernels::default(), gpu, cpu), Origin::Measured, threads)
    };
    for (gpu, cpu, threads, expected) in [
        (10, 10, 1, false),
        (14, 10, 1, false),
        (16, 10, 1, true),
        (14, 20, 2, false),
        (16, 20, 2, true),
        // More than four threads wait for the same memory.
        (14, 40, 16, false),
        (16, 40, 16, true),
        // Clocks that stand still.
        (10, 0, 1, false),
        (0, 0, 1, false),
    ] {
        let choice = choice(Some(gpu), Some(cpu), threads);
        assert_eq!(choice.is_slower_than_cpu(), expected, "{choice}");
    }
    for choice in [choice(None, Some(1), 1), choice(Some(1000), None, 1), Choice::fixed(Kernels::default())] {
        assert!(!choice.is_slower_than_cpu(), "{choice}");
    }
    let words = choice(Some(12), Some(20), 2).to_string();
    assert!(words.ends_with("(measured; a token takes about 12.0 ms, 10.0 ms on the CPU)"), "{words}");
    assert_eq!(Choice::read(&choice(Some(12), Some(20), 2).to_json()), Some(choice(Some(12), Some(20), 2)));
}

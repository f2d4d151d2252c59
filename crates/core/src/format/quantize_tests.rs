use super::*;
use crate::format::{FORMATS, Format};

fn packed() -> impl Iterator<Item = &'static FormatSpec> {
    FORMATS.iter().filter(|spec| Grid::of(spec).is_some())
}

/// Rows like those of models: mostly small, some large; the same in every run.
fn row(seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..SUPER_K).map(|_| (next() + next() + next()).powi(3) * 0.02).collect()
}

/// The weighted squared error of a row with nearest codes.
fn error(spec: &FormatSpec, weights: &[f32], scales: &RowScales, importance: &[f32]) -> f64 {
    let mut codes = vec![0; weights.len()];
    scales.nearest(spec, weights, &mut codes);
    let grid = Grid::of(spec).unwrap();
    assert!(codes.iter().all(|code| (grid.lowest..=grid.highest).contains(code)));
    let errors = weights.iter().zip(&codes).enumerate().map(|(i, (w, code))| {
        let error = w - scales.levels[i / spec.group].value(f32::from(*code));
        f64::from(importance.get(i).copied().unwrap_or(1.0)) * f64::from(error * error)
    });
    errors.sum()
}

#[test]
fn a_search_is_never_worse_than_the_largest_weight() {
    for spec in packed().filter(|spec| !spec.scale.is_super()) {
        for seed in 0..20 {
            let weights = row(seed);
            for importance in [vec![], row(seed + 99).iter().map(|x| x * x + 1e-6).collect()] {
                let of = |search| {
                    let scales = RowScales::choose(spec, &weights, search, &importance).unwrap();
                    error(spec, &weights, &scales, &importance)
                };
                let (plain, found) = (of(ScaleSearch::AbsMax), of(ScaleSearch::Clips));
                assert!(found <= plain * 1.000_01, "{} seed {seed}: {found} after {plain}", spec.name);
                assert!(spec.bits > 4 || found < 0.99 * plain, "{} seed {seed}: {found} {plain}", spec.name);
            }
        }
    }
}

#[test]
fn two_levels_lose_little() {
    for spec in packed().filter(|spec| spec.scale.is_super()) {
        for seed in 0..20 {
            let weights = row(seed);
            let scales = RowScales::choose(spec, &weights, ScaleSearch::Clips, &[]).unwrap();
            let grid = Grid::of(spec).unwrap();
            let alike = vec![1.0; spec.group];
            let free: f64 = (weights.chunks(spec.group))
                .map(|weights| {
                    let group = Group { grid, weights, importance: &alike, stores_halves: false };
                    let mut candidates = Vec::new();
                    grid.offer(weights, ScaleSearch::Clips, &mut candidates);
                    f64::from(group.error(group.best(&candidates, ScaleSearch::Clips).unwrap()))
                })
                .sum();
            let found = error(spec, &weights, &scales, &[]);
            assert!(found < 1.25 * free, "{} seed {seed}: {found}, with free scales {free}", spec.name);
        }
    }
}

#[test]
fn representable_rows_come_back_exactly() {
    for spec in packed() {
        let grid = Grid::of(spec).unwrap();
        let codes: Vec<i8> = (0..SUPER_K)
            .map(|i| {
                let span = i32::from(grid.highest) - i32::from(grid.lowest);
                // Every group holds both ends of the range.
                let code = match i % spec.group {
                    0 => span,
                    1 => 0,
                    k => (k as i32 * 37 + i as i32) % (span + 1),
                };
                (i32::from(grid.lowest) + code) as i8
            })
            .collect();
        let levels = Levels { scale: 0.125, min: if grid.has_min { -0.5 } else { 0.0 } };
        let weights: Vec<f32> = codes.iter().map(|code| levels.value(f32::from(*code))).collect();
        let scales = RowScales::choose(spec, &weights, ScaleSearch::Clips, &[]).unwrap();
        let found = error(spec, &weights, &scales, &[]);
        // The d of two levels is a half: nearest to a 127th of the scale.
        let most =
            if spec.scale.is_super() { 2e-6 * weights.iter().map(|w| w * w).sum::<f32>() } else { 0.0 };
        assert!(found <= f64::from(most), "{}: {found}", spec.name);
    }
}

#[test]
fn weights_of_importance_are_nearer() {
    for format in [Format::Q2, Format::Q3, Format::Q4, Format::Q2m] {
        let spec = format.spec();
        let weights = row(5);
        let importance: Vec<f32> = (0..SUPER_K).map(|i| if i % 7 == 0 { 100.0 } else { 0.01 }).collect();
        let alike = RowScales::choose(spec, &weights, ScaleSearch::Clips, &[]).unwrap();
        let weighted = RowScales::choose(spec, &weights, ScaleSearch::Clips, &importance).unwrap();
        let [before, after] = [alike, weighted].map(|scales| error(spec, &weights, &scales, &importance));
        assert!(after < 0.9 * before, "{}: {after} after {before}", spec.name);
    }
}

#[test]
fn zeros_and_extremes() {
    for spec in packed() {
        let choose = |weights: &[f32]| RowScales::choose(spec, weights, ScaleSearch::Clips, &[]);
        for small in [0.0, 1e-30, -1e-40] {
            let weights = vec![small; SUPER_K];
            let found = error(spec, &weights, &choose(&weights).unwrap(), &[]);
            assert!(found <= 1e-50, "{}: {found}", spec.name);
        }
        for bad in [f32::NAN, f32::INFINITY, 1e30] {
            let mut weights = row(1);
            weights[5] = bad;
            assert_eq!(choose(&weights), None, "{} {bad}", spec.name);
        }
        assert_eq!(choose(&[0.0; 31]), None);
        assert_eq!(RowScales::choose(spec, &row(1), ScaleSearch::Clips, &[1.0; 3]), None);
    }
}

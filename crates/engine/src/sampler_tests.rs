use super::*;
use proptest::prelude::*;

/// No penalty, no truncation, temperature 1.
fn plain() -> Sampling {
    Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Sampling::default() }
}

fn sampler(sampling: Sampling) -> Sampler {
    Sampler::new(sampling).unwrap()
}

/// The ids that can be drawn at all, in rising order.
fn possible(sampling: Sampling, logits: &[f32]) -> Vec<u32> {
    let mut sampler = sampler(sampling);
    sampler.collect(logits).unwrap();
    let mut ids: Vec<u32> = sampler.candidates.iter().map(|c| c.id).collect();
    ids.sort_unstable();
    ids
}

/// Logits of these probabilities.
fn of(probabilities: &[f64]) -> Vec<f32> {
    probabilities.iter().map(|p| libm::log(*p) as f32).collect()
}

#[test]
fn the_random_sequence_is_splitmix64() {
    // First outputs of the published C code for seed 1234567.
    let mut random = SplitMix64(1234567);
    let expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431];
    assert_eq!([random.next(), random.next(), random.next(), random.next()], expected);
}

#[test]
fn unusable_logits_are_errors() {
    for (bad, text) in [(f32::NAN, "that of token"), (f32::INFINITY, "that of token")] {
        for at in [0, 15, 16, 33] {
            let mut logits = vec![0.0; 34];
            logits[at] = bad;
            let error = sampler(plain()).sample(&logits).unwrap_err();
            assert_eq!(error.code(), "bad-logits");
            let top = [Candidate { id: at as u32, logit: bad }];
            let of_top = sampler(Sampling::greedy()).sample_top(&top).unwrap_err();
            assert_eq!(of_top.to_string(), error.to_string());
            assert!(error.to_string().contains(&format!("{text} {at} is")), "{error}");
        }
    }
    assert!(sampler(Sampling::greedy()).sample(&[]).is_err());
    assert!(sampler(Sampling::greedy()).sample_top(&[]).is_err());
    assert!(sampler(plain()).sample(&[f32::NEG_INFINITY; 3]).is_err());
}

#[test]
fn parameters_without_meaning_are_errors() {
    type Set = fn(&mut Sampling, f32);
    let cases: [(&str, Set, &[f32]); 6] = [
        ("temperature", |s, x| s.temperature = x, &[-0.1]),
        ("topP", |s, x| s.top_p = x, &[0.0, -1.0, 1.01]),
        ("minP", |s, x| s.min_p = x, &[-0.1, 1.01]),
        ("repetitionPenalty", |s, x| s.repetition_penalty = x, &[0.0, -1.0]),
        ("presencePenalty", |s, x| s.presence_penalty = x, &[]),
        ("frequencyPenalty", |s, x| s.frequency_penalty = x, &[]),
    ];
    for (field, set, bad) in cases {
        for &x in bad.iter().chain(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]) {
            let mut sampling = plain();
            set(&mut sampling, x);
            let error = Sampler::new(sampling).unwrap_err();
            assert_eq!(error.code(), "bad-sampling");
            assert!(error.to_string().contains(field), "{error}");
        }
    }
    assert!(Sampling::default().validate().is_ok());
    assert!(Sampling { top_p: 1.0, min_p: 1.0, temperature: -0.0, ..plain() }.validate().is_ok());
}

#[test]
fn json_names_are_those_of_the_page() {
    let sampling: Sampling =
        serde_json::from_str(r#"{"temperature":0,"topK":5,"minP":0.25,"seed":7}"#).unwrap();
    assert_eq!(sampling, Sampling { top_k: 5, min_p: 0.25, seed: 7, ..Sampling::greedy() });
    assert!(serde_json::from_str::<Sampling>(r#"{"topk":5}"#).is_err());
}

#[test]
fn truncation_keeps_the_documented_tokens() {
    let logits = of(&[0.1, 0.4, 0.05, 0.3, 0.15]);
    let keeps = |change: fn(&mut Sampling)| {
        let mut sampling = plain();
        change(&mut sampling);
        possible(sampling, &logits)
    };
    assert_eq!(keeps(|_| ()), [0, 1, 2, 3, 4]);
    assert_eq!(keeps(|s| s.top_k = 2), [1, 3]);
    assert_eq!(keeps(|s| s.top_k = 99), [0, 1, 2, 3, 4]);
    assert_eq!(keeps(|s| s.top_p = 0.69), [1, 3]);
    assert_eq!(keeps(|s| s.top_p = 0.71), [1, 3, 4]);
    assert_eq!(keeps(|s| s.top_p = 1e-9), [1]);
    assert_eq!(keeps(|s| s.min_p = 0.26), [1, 3, 4]);
    assert_eq!(keeps(|s| s.min_p = 1.0), [1]);
    // Shares are those among the top k: 0.4 of 0.7 is more than half, of 1.0 it would not be.
    assert_eq!(keeps(|s| (s.top_k, s.top_p) = (2, 0.5)), [1]);
    // Temperature comes last and changes nothing of it.
    assert_eq!(keeps(|s| (s.temperature, s.top_p) = (100.0, 0.69)), [1, 3]);
}

#[test]
fn equal_logits_are_taken_by_id() {
    assert_eq!(possible(Sampling { top_k: 3, ..plain() }, &[1.0; 50]), [0, 1, 2]);
    assert_eq!(possible(Sampling { top_p: 0.099, ..plain() }, &[1.0; 50]), [0, 1, 2, 3, 4]);
}

#[test]
fn a_flat_distribution_needs_the_whole_vocabulary() {
    let kept = possible(Sampling { top_p: 0.9, ..plain() }, &vec![0.0; 30_000]);
    assert!((26_999..=27_001).contains(&kept.len()), "{}", kept.len());
}

#[test]
fn draws_have_the_probabilities_of_the_softmax() {
    let probabilities = [0.1, 0.2, 0.4, 0.25, 0.05];
    for (temperature, exponent) in [(1.0, 1.0), (0.5, 2.0), (2.0, 0.5)] {
        for top_k in [0, 5, 4] {
            let mut sampler = sampler(Sampling { temperature, top_k, seed: 9, ..plain() });
            let mut counts = [0.0; 5];
            for _ in 0..20_000 {
                counts[sampler.sample(&of(&probabilities)).unwrap() as usize] += 1.0;
            }
            let mut expected = probabilities.map(|p| libm::pow(p, exponent));
            if top_k == 4 {
                expected[4] = 0.0;
            }
            let total: f64 = expected.iter().sum();
            for (count, p) in counts.iter().zip(expected) {
                // Five standard deviations.
                let (p, n) = (p / total, 20_000.0);
                assert!((count - n * p).abs() <= 5.0 * libm::sqrt(n * p * (1.0 - p)), "{counts:?}");
            }
        }
    }
}

#[test]
fn the_seed_decides() {
    let logits = of(&[0.2; 5]);
    let run = |seed| {
        let mut sampler = sampler(Sampling { seed, ..plain() });
        (0..32).map(|_| sampler.sample(&logits).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    // Fixed for ever: an answer must be reproducible from its seed.
    assert_eq!(run(0)[..12], [4, 2, 0, 4, 0, 1, 0, 3, 1, 4, 1, 3]);
}

#[test]
fn a_forbidden_token_is_never_drawn() {
    let mut logits = vec![f32::NEG_INFINITY; 8];
    logits[3] = -1.0;
    logits[6] = -2.0;
    let mut sampler = sampler(plain());
    let mut seen = [false; 8];
    for _ in 0..200 {
        seen[sampler.sample(&logits).unwrap() as usize] = true;
    }
    assert_eq!(seen, [false, false, false, true, false, false, true, false]);
}

#[test]
fn penalties_follow_the_formula() {
    let sampling = Sampling {
        repetition_penalty: 2.0,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        penalty_window: 4,
        ..Sampling::greedy()
    };
    let mut sampler = sampler(sampling);
    // 0 has left the window; 9 is no token of these logits.
    for id in [0, 1, 2, 1, 9] {
        sampler.accept(id);
    }
    let mut penalised = Vec::new();
    sampler.penalise(&[4.0, 4.0, -4.0, 4.0], &mut penalised);
    assert_eq!(penalised, [4.0, 4.0 / 2.0 - 2.0 * 0.25 - 0.5, -4.0 * 2.0 - 0.25 - 0.5, 4.0]);
    assert_eq!(sampler.sample(&[3.0, 7.0, 0.0, 2.0]).unwrap(), 0);
}

#[test]
fn a_window_of_nothing_penalises_nothing() {
    let mut sampler = sampler(Sampling { presence_penalty: 9.0, penalty_window: 0, ..Sampling::greedy() });
    sampler.accept(1);
    assert_eq!(sampler.sample(&[0.0, 1.0]).unwrap(), 1);
}

#[test]
fn what_decides_is_told() {
    let top_k = |top_k| Sampling { top_k, ..plain() };
    let penalties = |sampling| Sampling { repetition_penalty: 1.5, penalty_window: 7, ..sampling };
    for (sampling, needs) in [
        (Sampling::greedy(), Some(1)),
        (top_k(20), Some(20)),
        // By id, when all stay: their order would be another one.
        (top_k(100), None),
        (top_k(0), None),
        (penalties(Sampling::greedy()), Some(8)),
        (penalties(top_k(20)), Some(27)),
        (penalties(top_k(95)), Some(100)),
        (Sampling { presence_penalty: -1.0, ..Sampling::greedy() }, None),
        (Sampling { frequency_penalty: -1.0, ..penalties(top_k(20)) }, None),
        (Sampling { repetition_penalty: 0.5, ..top_k(20) }, None),
        (Sampling { repetition_penalty: 0.5, penalty_window: 0, ..top_k(20) }, Some(20)),
    ] {
        assert_eq!(sampler(sampling.clone()).needs(100), needs, "{sampling:?}");
    }
}

proptest! {
    #[test]
    fn the_largest_decide_as_all_do(
        logits in prop::collection::vec(-40i8..40, 2..400),
        window in prop::collection::vec(0u32..400, 0..20),
        (top_k, top_p, min_p) in (1usize..50, 0.1f32..1.2, 0.0f32..0.3),
        (temperature, repetition, presence, frequency) in (0.0f32..2.0, 0.5f32..2.0, 0.0f32..2.0, 0.0f32..1.0),
        seed in 0u64..1000,
    ) {
        let logits: Vec<f32> = logits.into_iter().map(|x| f32::from(x) / 8.0).collect();
        let mut all = sampler(Sampling {
            temperature: if temperature < 0.5 { 0.0 } else { temperature },
            top_k,
            top_p: top_p.min(1.0),
            min_p,
            repetition_penalty: if repetition < 1.0 { 1.0 } else { repetition },
            presence_penalty: presence,
            frequency_penalty: frequency,
            penalty_window: 8,
            seed,
        });
        for id in window {
            all.accept(id);
        }
        let Some(needs) = all.needs(logits.len()) else { return Ok(()) };
        let (mut largest, mut few) = (Vec::new(), all.clone());
        lowbit_core::candidates::top_k(&logits, needs, &mut largest);
        for _ in 0..8 {
            let id = all.sample(&logits).unwrap();
            prop_assert_eq!(few.sample_top(&largest).unwrap(), id);
            all.accept(id);
            few.accept(id);
        }
    }

    #[test]
    fn top_p_equals_its_definition(
        logits in prop::collection::vec(-8f32..8.0, 1..2000),
        top_p in 0.01f32..1.0,
        top_k in 0usize..2500,
    ) {
        let mut sorted: Vec<Candidate> = (0..).zip(&logits).map(|(id, &logit)| Candidate { id, logit }).collect();
        sorted.sort_by(Candidate::order);
        if top_k > 0 {
            sorted.truncate(top_k);
        }
        let weights: Vec<f64> = sorted.iter().map(|c| libm::exp(f64::from(c.logit - sorted[0].logit))).collect();
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let mut expected = 0;
        while expected < sorted.len() && sum < f64::from(top_p) * total {
            sum += weights[expected];
            expected += 1;
        }
        let found = possible(Sampling { top_p, top_k, ..plain() }, &logits).len();
        // The order of summation may decide at the edge.
        prop_assert!(found.abs_diff(expected) <= 1, "{} for {}", found, expected);
    }
}

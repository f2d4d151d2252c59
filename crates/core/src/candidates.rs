//! Tokens that may be chosen: the largest logits, in an order that is the same on every device.

use std::cmp::Ordering;

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
}

impl Candidate {
    /// Largest logit first, of equals the lower id. NaN comes before all others, so that who looks at the first of many
    /// sees it; the two zeros are equal.
    pub fn order(a: &Self, b: &Self) -> Ordering {
        rank(b.logit).cmp(&rank(a.logit)).then(a.id.cmp(&b.id))
    }

    /// A token and the logit of a [`rank`].
    pub fn of_rank(id: u32, rank: u32) -> Self {
        let bits = if rank >> 31 == 1 { rank ^ SIGN } else { !rank };
        Self { id, logit: f32::from_bits(bits) }
    }
}

const SIGN: u32 = 1 << 31;

/// An integer that is the larger, the larger a logit is; of a NaN, the largest of all. Shaders compare by it.
pub fn rank(logit: f32) -> u32 {
    if logit.is_nan() {
        return u32::MAX;
    }
    // The sum makes zeros positive.
    let bits = (logit + 0.0).to_bits();
    if bits & SIGN == 0 { bits | SIGN } else { !bits }
}

/// The first of `logits` in [`Candidate::order`]; nothing of none.
pub fn first(logits: &[f32]) -> Option<Candidate> {
    const LANES: usize = 16;
    let mut largest = [f32::NEG_INFINITY; LANES];
    let mut nan = [false; LANES];
    let (rows, rest) = logits.as_chunks::<LANES>();
    for row in rows {
        for lane in 0..LANES {
            nan[lane] |= row[lane].is_nan();
            largest[lane] = if row[lane] > largest[lane] { row[lane] } else { largest[lane] };
        }
    }
    let best = largest.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let at = if nan.contains(&true) || rest.iter().any(|x| x.is_nan()) {
        logits.iter().position(|x| x.is_nan())
    } else {
        logits.iter().position(|&x| x == best)
    }?;
    Some(Candidate { id: at as u32, logit: logits[at] })
}

/// The first `k` of `logits` in [`Candidate::order`], or all if there are fewer, in time linear in their number.
pub fn top_k(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    out.clear();
    if k <= 1 {
        out.extend(first(logits).filter(|_| k == 1));
        return;
    }
    let keep = |out: &mut Vec<Candidate>| {
        if out.len() > k {
            out.select_nth_unstable_by(k - 1, Candidate::order);
            out.truncate(k);
        }
    };
    // Ids rise, so that a later logit must exceed the k-th so far to be among the k.
    let mut least = None;
    for (id, &logit) in (0..).zip(logits) {
        if least.is_none_or(|least| logit.is_nan() || logit > least) {
            out.push(Candidate { id, logit });
            if out.len() == 2 * k {
                keep(out);
                least = Some(out[k - 1].logit);
            }
        }
    }
    keep(out);
    out.sort_unstable_by(Candidate::order);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STRANGE: [f32; 9] =
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-42, -1e-42, f32::MAX, f32::MIN];

    /// By sorting all.
    fn sorted(logits: &[f32], k: usize) -> Vec<(u32, u32)> {
        let mut all: Vec<_> = (0..).zip(logits).map(|(id, &logit)| Candidate { id, logit }).collect();
        all.sort_by(Candidate::order);
        all.truncate(k);
        all.into_iter().map(|c| (c.id, rank(c.logit))).collect()
    }

    #[test]
    fn ranks_are_in_the_order_of_logits() {
        let rising =
            [f32::NEG_INFINITY, f32::MIN, -1.0, -1e-42, 0.0, 1e-42, 1.0, f32::MAX, f32::INFINITY, f32::NAN];
        assert!(rising.map(rank).is_sorted_by(|a, b| a < b));
        assert_eq!((rank(-0.0), rank(-f32::NAN)), (rank(0.0), rank(f32::NAN)));
        for logit in rising {
            let back = Candidate::of_rank(7, rank(logit));
            assert_eq!((back.id, rank(back.logit), back.logit.is_nan()), (7, rank(logit), logit.is_nan()));
        }
    }

    #[test]
    fn the_first_of_equals_is_found_in_every_lane() {
        for at in 0..40 {
            for n in at + 1..41 {
                for (least, best) in [(-3.5, 2.0), (-3.5, f32::INFINITY), (f32::INFINITY, f32::NAN)] {
                    let mut logits = vec![least; n];
                    logits[at..].fill(best);
                    let found = first(&logits).map(|c| (c.id, c.logit.to_bits()));
                    assert_eq!(found, Some((at as u32, best.to_bits())), "{at} of {n}");
                }
            }
        }
        assert_eq!(first(&[f32::NEG_INFINITY; 3]).map(|c| c.id), Some(0));
        assert_eq!(first(&[]), None);
    }

    proptest! {
        #[test]
        fn selection_equals_sorting(
            logits in prop::collection::vec((-4i8..4, 0usize..100), 1..300),
            k in 0usize..300,
        ) {
            let logits: Vec<f32> =
                logits.into_iter().map(|(x, i)| STRANGE.get(i).copied().unwrap_or(x.into())).collect();
            let mut found = Vec::new();
            top_k(&logits, k, &mut found);
            let found: Vec<_> = found.iter().map(|c| (c.id, rank(c.logit))).collect();
            prop_assert_eq!(found, sorted(&logits, k));
        }
    }
}

//! The plans that ran last, with what an executor has made of them.

use crate::plan::{BufferId, Plan};

/// Plans that are kept.
const KEPT: usize = 4;

/// Plans and what was made of each, the latest at the end.
pub struct Kept<T>(Vec<(Plan, T)>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Kept<T> {
    /// What was made of a plan that is the same for the GPU.
    pub fn get(&mut self, plan: &Plan) -> Option<&T> {
        let at = self.0.iter().position(|(kept, _)| kept.is_same(plan))?;
        let found = self.0.remove(at);
        self.0.push(found);
        self.0.last().map(|(_, made)| made)
    }

    /// Keeps a plan; returns what falls out for it.
    pub fn put(&mut self, plan: &Plan, made: T) -> Option<T> {
        let oldest = (self.0.len() == KEPT).then(|| self.0.remove(0).1);
        self.0.push((plan.clone(), made));
        oldest
    }

    /// Forgets the plans that name a buffer, whose name may be given to another one. Returns what was made of them.
    pub fn forget(&mut self, buffer: BufferId) -> Vec<T> {
        let names = |plan: &Plan| plan.dispatches.iter().any(|run| run.buffers.contains(&buffer));
        self.0.extract_if(.., |(plan, _)| names(plan)).map(|(_, made)| made).collect()
    }
}

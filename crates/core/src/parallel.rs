//! The team of threads: the only code that knows about threads.
//!
//! A [`Team`] runs one job at a time on all its threads and waits for the last of them. Its helpers spin for a moment
//! between jobs, because the next one follows within microseconds while a model runs, and then sleep.
//!
//! Natively the helpers are threads of the team and end with it. In WebAssembly a module cannot start threads: the page
//! starts Web Workers on the module's shared memory, one at a time, and each becomes a `Helper`. Every team takes its
//! helpers from these. Without shared memory there are none, and a team is the calling thread alone.

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The most threads of a team.
pub const MAX_THREADS: usize = 255;

/// Looks at a condition before a waiting thread sleeps: some 100 microseconds.
/// WebAssembly has no pause instruction, so that its looks are quicker.
const SPINS: u32 = if cfg!(target_family = "wasm") { 40_000 } else { 2_500 };
/// Looks after which the core is offered to others, where that is possible.
const SPINS_BEFORE_YIELD: u32 = 250;

type Job = dyn Fn(usize) + Sync;

/// Cores that this process may use; one where the system does not say.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Threads that run a job together.
pub struct Team {
    threads: usize,
    #[cfg(not(target_family = "wasm"))]
    pool: std::sync::Arc<Pool>,
    #[cfg(not(target_family = "wasm"))]
    helpers: Vec<std::thread::JoinHandle<()>>,
    #[cfg(target_family = "wasm")]
    pool: &'static Pool,
}

#[cfg(not(target_family = "wasm"))]
impl Team {
    /// A team of `threads` threads, the caller's included; at least one, at most [`MAX_THREADS`], and fewer than asked
    /// for when the system refuses to start them.
    pub fn new(threads: usize) -> Self {
        let pool = std::sync::Arc::new(Pool::new());
        let mut helpers = Vec::new();
        for id in 1..threads.clamp(1, MAX_THREADS) {
            let pool = pool.clone();
            let seen = pool.state.load(Ordering::SeqCst);
            let thread = std::thread::Builder::new().name(format!("lowbit-{id}"));
            match thread.spawn(move || pool.help(id, seen)) {
                Ok(handle) => helpers.push(handle),
                Err(_) => break,
            }
        }
        Self { threads: helpers.len() + 1, pool, helpers }
    }
}

#[cfg(not(target_family = "wasm"))]
impl Drop for Team {
    fn drop(&mut self) {
        self.pool.shutdown.store(true, Ordering::SeqCst);
        self.pool.started.notify();
        for helper in self.helpers.drain(..) {
            // A helper ends with `Ok`: it catches the panics of its jobs.
            let _ = helper.join();
        }
    }
}

/// The helpers that the page has started.
#[cfg(target_family = "wasm")]
static PAGE: Pool = Pool::new();
#[cfg(target_family = "wasm")]
static HELPERS: AtomicUsize = AtomicUsize::new(0);

/// A Web Worker's place in every team that is made from now on.
#[cfg(target_family = "wasm")]
pub struct Helper {
    id: usize,
    seen: u32,
}

#[cfg(target_family = "wasm")]
impl Helper {
    /// Takes the place. Jobs do without this helper until it begins to [`help`](Self::help).
    pub fn join() -> Self {
        let seen = PAGE.state.load(Ordering::SeqCst);
        Self { id: HELPERS.fetch_add(1, Ordering::SeqCst) + 1, seen }
    }

    /// What the Web Worker does for the rest of its life: takes part in the jobs of every team. It does not return.
    pub fn help(self) {
        PAGE.help(self.id, self.seen);
    }
}

#[cfg(target_family = "wasm")]
impl Team {
    /// A team of at most `threads` threads: the caller and the helpers that have joined so far.
    pub fn new(threads: usize) -> Self {
        let helpers = HELPERS.load(Ordering::SeqCst);
        Self { threads: threads.clamp(1, MAX_THREADS).min(helpers + 1), pool: &PAGE }
    }
}

impl Team {
    /// Threads of this team, the caller's included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `job(thread)` on the caller, as thread 0, and at most once on every helper that comes before the caller is
    /// done; returns when all have returned. So a job hands out its work bit by bit, and nobody waits for a helper that
    /// the system lets wait.
    ///
    /// A panic of any of them is passed on after all have ended. A job must not use the team that runs it.
    pub fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        if self.threads == 1 {
            return job(0);
        }
        self.pool.run(self.threads, job);
    }

    /// Calls `job(thread, range)` for ranges of at most `grain` items that together are `0..len`, each once. A thread
    /// takes the next range when it is done with one, so that a slow thread keeps nobody waiting for long.
    pub fn for_each_chunk(&self, len: usize, grain: usize, job: impl Fn(usize, Range<usize>) + Sync) {
        let chunks = Chunks::new(len, grain);
        if len <= grain {
            return chunks.take().into_iter().for_each(|range| job(0, range));
        }
        self.run(&|thread| {
            while let Some(range) = chunks.take() {
                job(thread, range);
            }
        });
    }
}

/// Ranges that threads take in turn.
#[derive(Debug)]
pub struct Chunks {
    next: AtomicUsize,
    len: usize,
    grain: usize,
}

impl Chunks {
    /// Ranges of `grain` (at least one) items of `0..len`; the last may be shorter.
    pub fn new(len: usize, grain: usize) -> Self {
        Self { next: AtomicUsize::new(0), len, grain: grain.max(1) }
    }

    /// The next range that nobody has taken.
    pub fn take(&self) -> Option<Range<usize>> {
        // What the items hold is handed over by the start and the end of the job, not by this counter. It is not raised
        // far past the end, so that it never wraps.
        if self.next.load(Ordering::Relaxed) > self.len / self.grain {
            return None;
        }
        let start = self.next.fetch_add(1, Ordering::Relaxed).checked_mul(self.grain)?;
        (start < self.len).then(|| start..self.len.min(start + self.grain))
    }
}

/// Equal parts of a slice, each handed out once, so that several threads write different ones at the same time.
#[derive(Debug)]
pub struct Parts<'a, T> {
    data: *mut T,
    len: usize,
    chunks: Chunks,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: the only access to `data` is through parts, which are disjoint and handed out once.
unsafe impl<T: Send> Sync for Parts<'_, T> {}
// SAFETY: as above; the slice was lent mutably, and its items may be sent.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// Parts of `size` (at least one) items of `data`; the last may be shorter.
    pub fn new(data: &'a mut [T], size: usize) -> Self {
        let (len, data) = (data.len(), data.as_mut_ptr());
        Self { data, len, chunks: Chunks::new(len, size), lifetime: PhantomData }
    }

    /// A part that nobody has taken, and its number.
    pub fn take(&self) -> Option<(usize, &'a mut [T])> {
        let range = self.chunks.take()?;
        debug_assert!(range.end <= self.len);
        // SAFETY: `Chunks` hands out every range inside `0..len` once; the slice was lent for `'a`.
        let part = unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) };
        Some((range.start / self.chunks.grain, part))
    }
}

/// What the threads of a team share.
struct Pool {
    /// Held by whoever runs a job.
    turn: Mutex<()>,
    /// The number of the job ([`JOB`] and up), whether helpers may still begin it ([`CLOSED`]), and how many are at it.
    /// It is one word, so that a helper that comes late never mixes up two jobs.
    state: AtomicU32,
    /// The job with that number, for the helpers that are at it.
    job: UnsafeCell<Option<&'static Job>>,
    /// Its threads: helpers with larger numbers take no part.
    threads: AtomicUsize,
    shutdown: AtomicBool,
    /// The first panic of a helper.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    started: Signal,
    ended: Signal,
}

/// Helpers that are at the job.
const HELPERS_MASK: u32 = CLOSED - 1;
const CLOSED: u32 = 1 << 8;
const JOB: u32 = 1 << 9;

// SAFETY: `job` is written only by the holder of `turn` while no helper is at a job and none may begin one; it is read
// only by helpers that have counted themselves in `state`, until they take themselves off. All else synchronises itself.
unsafe impl Sync for Pool {}
// SAFETY: the job is `Sync`, and a pool that no thread uses holds none that is still called.
unsafe impl Send for Pool {}

impl Pool {
    const fn new() -> Self {
        Self {
            turn: Mutex::new(()),
            state: AtomicU32::new(CLOSED),
            job: UnsafeCell::new(None),
            threads: AtomicUsize::new(0),
            shutdown: AtomicBool::new(false),
            panic: Mutex::new(None),
            started: Signal::new(),
            ended: Signal::new(),
        }
    }

    /// Opens the next job. The last one is closed and nobody is at it.
    fn open(&self) {
        let number = self.state.load(Ordering::SeqCst) / JOB;
        self.state.store(number.wrapping_add(1).wrapping_mul(JOB), Ordering::SeqCst);
        self.started.notify();
    }

    fn run(&self, threads: usize, job: &(dyn Fn(usize) + Sync)) {
        let _turn = lock(&self.turn);
        // SAFETY: only the lifetime changes. Helpers call the job only while they are counted, for which `Close` waits
        // before this function returns or unwinds.
        let job_for_helpers: &'static Job = unsafe { std::mem::transmute(job) };
        // SAFETY: `turn` is held, the last job is closed and nobody is at it: the last `Close` has waited for that.
        unsafe { *self.job.get() = Some(job_for_helpers) };
        self.threads.store(threads, Ordering::SeqCst);
        let close = Close(self);
        self.open();
        job(0);
        drop(close);
        if let Some(panic) = lock(&self.panic).take() {
            resume_unwind(panic);
        }
    }

    /// The life of helper `id`, which has seen the state `seen`.
    fn help(&self, id: usize, mut seen: u32) {
        loop {
            let ends = || self.shutdown.load(Ordering::SeqCst);
            self.started.wait(|| ends() || self.state.load(Ordering::SeqCst) / JOB != seen / JOB);
            if ends() {
                return;
            }
            seen = self.state.load(Ordering::SeqCst);
            if id < self.threads.load(Ordering::SeqCst) && self.begin(seen / JOB) {
                self.take_part(id);
            }
        }
    }

    /// Counts a helper in, if job `number` is still open.
    fn begin(&self, number: u32) -> bool {
        let open = |state| (state / JOB == number && state & CLOSED == 0).then_some(state + 1);
        self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, open).is_ok()
    }

    fn take_part(&self, id: usize) {
        // SAFETY: this helper is counted in `state`: the job is written, and stays until it takes itself off.
        let job = unsafe { *self.job.get() };
        if let Some(job) = job
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(id)))
        {
            lock(&self.panic).get_or_insert(panic);
        }
        let before = self.state.fetch_sub(1, Ordering::SeqCst);
        if before & (CLOSED | HELPERS_MASK) == CLOSED + 1 {
            self.ended.notify();
        }
    }
}

/// Closes the running job, when dropped, and waits for the helpers that are at it.
struct Close<'a>(&'a Pool);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_or(CLOSED, Ordering::SeqCst);
        self.0.ended.wait(|| self.0.state.load(Ordering::SeqCst) & HELPERS_MASK == 0);
    }
}

/// Wakes threads that wait for a condition on atomics.
struct Signal {
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Signal {
    const fn new() -> Self {
        Self { sleepers: AtomicUsize::new(0), lock: Mutex::new(()), changed: Condvar::new() }
    }

    /// Returns when `ready()`: spins for a while, then sleeps. `ready` reads with [`Ordering::SeqCst`].
    fn wait(&self, ready: impl Fn() -> bool) {
        for spin in 1..=SPINS {
            if ready() {
                return;
            }
            std::hint::spin_loop();
            if spin % SPINS_BEFORE_YIELD == 0 {
                std::thread::yield_now();
            }
        }
        let mut guard = lock(&self.lock);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !ready() {
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes the sleepers, after a store (with [`Ordering::SeqCst`]) that may have made them ready. Either this sees a
    /// sleeper, or the sleeper, which counts itself before it looks again, sees the store.
    fn notify(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.lock));
            self.changed.notify_all();
        }
    }
}

/// Locks; a panic elsewhere leaves nothing half-done under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a job that every thread takes part in, because all wait for the last.
    fn run_on_all(team: &Team, job: impl Fn(usize) + Sync) {
        let begun = AtomicUsize::new(0);
        team.run(&|thread| {
            begun.fetch_add(1, Ordering::SeqCst);
            while begun.load(Ordering::SeqCst) < team.threads() {
                std::thread::yield_now();
            }
            job(thread);
        });
    }

    #[test]
    fn the_caller_runs_every_job_and_no_helper_one_twice() {
        for threads in 1..=9 {
            let team = Team::new(threads);
            assert_eq!(team.threads(), threads);
            let calls: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for round in 1..=200 {
                team.run(&|thread| {
                    calls[thread].fetch_add(1, Ordering::Relaxed);
                });
                assert_eq!(calls[0].load(Ordering::Relaxed), round);
                assert!(calls.iter().all(|count| count.load(Ordering::Relaxed) <= round), "{calls:?}");
            }
        }
    }

    #[test]
    fn a_job_sees_what_the_caller_and_earlier_jobs_wrote() {
        let team = Team::new(3);
        let values: Vec<_> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        for round in 1..100 {
            run_on_all(&team, |thread| {
                let others: usize = values.iter().map(|value| value.load(Ordering::Relaxed)).sum();
                // Each is in the last round or in this one.
                assert!((3 * (round - 1)..=3 * round).contains(&others), "{others} in round {round}");
                values[thread].store(round, Ordering::Relaxed);
            });
        }
    }

    #[test]
    fn sleeping_threads_wake_up() {
        let team = Team::new(4);
        let calls = AtomicUsize::new(0);
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            run_on_all(&team, |thread| {
                // The caller, too, falls asleep while it waits.
                if thread == 2 {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                calls.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(calls.into_inner(), 20);
    }

    #[test]
    fn chunks_cover_all_items_once() {
        let team = Team::new(3);
        for (len, grain) in [(0, 1), (1, 1), (7, 3), (64, 16), (1000, 7), (5, 0), (3, 100)] {
            let hits: Vec<_> = (0..len).map(|_| AtomicUsize::new(0)).collect();
            team.for_each_chunk(len, grain, |_, range| {
                assert!(!range.is_empty() && range.len() <= grain.max(1));
                for item in range {
                    hits[item].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 1), "{len} {grain} {hits:?}");
        }
    }

    #[test]
    fn parts_are_disjoint_and_cover_the_slice() {
        let team = Team::new(3);
        let mut data: Vec<usize> = vec![0; 1001];
        let parts = Parts::new(&mut data, 10);
        team.run(&|_| {
            while let Some((number, part)) = parts.take() {
                for (i, item) in part.iter_mut().enumerate() {
                    *item += number * 10 + i + 1;
                }
            }
        });
        assert!(data.iter().enumerate().all(|(i, item)| *item == i + 1));
        assert!(Parts::new(&mut [0; 0], 10).take().is_none());
    }

    #[test]
    fn panics_are_passed_on_and_the_team_goes_on() {
        let team = Team::new(3);
        for culprit in [0, 1, 2, 1] {
            let result = catch_unwind(AssertUnwindSafe(|| {
                run_on_all(&team, |thread| assert_ne!(thread, culprit, "culprit"));
            }));
            assert!(result.is_err(), "{culprit}");
            let calls = AtomicUsize::new(0);
            run_on_all(&team, |_| {
                calls.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(calls.into_inner(), 3);
        }
    }

    #[test]
    fn teams_may_be_used_from_several_threads() {
        let team = Team::new(3);
        let items = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        team.for_each_chunk(8, 1, |_, range| {
                            items.fetch_add(range.len(), Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(items.into_inner(), 2400);
    }

    #[test]
    fn helpers_end_with_their_team() {
        let team = Team::new(4);
        let pool = std::sync::Arc::downgrade(&team.pool);
        team.run(&|_| ());
        drop(team);
        assert!(pool.upgrade().is_none());
    }
}

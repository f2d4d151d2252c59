//! The kernels as a bare WebAssembly module, for `run.mjs`: checks them against the oracle and measures them.

mod attention;
#[path = "../../benches/matmul/cases.rs"]
mod cases;

use std::cell::RefCell;

use lowbit_core::kernels::selftest;
use lowbit_core::simd::Isa;

thread_local! {
    static WORK: RefCell<Option<Work>> = const { RefCell::new(None) };
    static TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// What is measured.
enum Work {
    Product(cases::Product),
    Attention(attention::Attend),
}

fn say(text: String) -> usize {
    TEXT.with_borrow_mut(|last| {
        *last = text;
        last.len()
    })
}

fn isa(index: usize) -> Option<Isa> {
    Isa::available().nth(index)
}

/// Where the text is that the last call left.
#[unsafe(no_mangle)]
pub extern "C" fn text() -> *const u8 {
    TEXT.with_borrow(|text| text.as_ptr())
}

/// Leaves the name of ISA `index`; returns its length, 0 when there are no more.
#[unsafe(no_mangle)]
pub extern "C" fn isa_name(index: usize) -> usize {
    isa(index).map_or(0, |isa| say(isa.name().into()))
}

/// Checks ISA `index`: products against the oracle, attention against plain Rust. Leaves the first failure; returns its
/// length, 0 when there is none.
#[unsafe(no_mangle)]
pub extern "C" fn check(index: usize) -> usize {
    let isa = isa(index).unwrap_or(Isa::Scalar);
    let failure = selftest::cases().into_iter().find_map(|case| selftest::check(&[isa], case).err());
    if let Some(error) = failure {
        return say(error.to_string());
    }
    let differs = |case: &&attention::Case| {
        let mut work = attention::Attend::new(**case);
        let expected = work.run(Isa::Scalar).to_vec();
        work.run(isa) != expected
    };
    attention::CASES.iter().find(differs).map_or(0, |case| say(case.to_string()))
}

/// Prepares case `index` and leaves its name; returns its length, 0 when there are no more.
#[unsafe(no_mangle)]
pub extern "C" fn prepare(index: usize) -> usize {
    if let Some(&case) = cases::CASES.get(index) {
        WORK.set(Some(Work::Product(cases::Product::new(case))));
        say(case.to_string())
    } else if let Some(&case) = attention::CASES.get(index - cases::CASES.len()) {
        WORK.set(Some(Work::Attention(attention::Attend::new(case))));
        say(case.to_string())
    } else {
        0
    }
}

/// Multiplications in the prepared case.
#[unsafe(no_mangle)]
pub extern "C" fn macs() -> f64 {
    measure(|work| match work {
        Work::Product(work) => work.macs(),
        Work::Attention(work) => work.macs(),
    })
}

/// Bytes of weights, or keys and values, in the prepared case.
#[unsafe(no_mangle)]
pub extern "C" fn bytes() -> f64 {
    measure(|work| match work {
        Work::Product(work) => work.bytes(),
        Work::Attention(work) => work.bytes(),
    })
}

fn measure(what: impl Fn(&Work) -> usize) -> f64 {
    WORK.with_borrow(|work| work.as_ref().map_or(0.0, |work| what(work) as f64))
}

/// Computes the prepared case `times` times with ISA `index`.
#[unsafe(no_mangle)]
pub extern "C" fn run(index: usize, times: usize) {
    let isa = isa(index).unwrap_or(Isa::Scalar);
    WORK.with_borrow_mut(|work| {
        for _ in 0..times {
            match work {
                Some(Work::Product(work)) => {
                    work.run(isa);
                }
                Some(Work::Attention(work)) => {
                    work.run(isa);
                }
                None => (),
            }
        }
    });
}

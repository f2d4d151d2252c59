//! Speed of matrix products on one thread, every ISA of this machine. Elements are multiplications of codes; for `m1`
//! the weights are read once, so 4-bit codes with f16 scales take 0.56 bytes an element.

mod cases;

use criterion::{BenchmarkId, Criterion, Throughput};
use lowbit_core::simd::Isa;
use std::time::Duration;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
        .configure_from_args();
    let mut group = criterion.benchmark_group("matmul");
    for &case in cases::CASES {
        let mut product = cases::Product::new(case);
        group.throughput(Throughput::Elements(product.macs() as u64));
        for isa in Isa::available().filter(|&isa| isa != Isa::Scalar) {
            group.bench_function(BenchmarkId::new(isa.name(), case), |b| b.iter(|| product.run(isa)[0]));
        }
    }
    group.finish();
    criterion.final_summary();
}

//! Prints every shader as JSON, `[{name, source}]`: for compilers other than that of `wgpu`.

use lowbit_gpu::Shader;

fn main() {
    let shader =
        |shader: Shader| serde_json::json!({ "name": shader.to_string(), "source": shader.source() });
    println!("{}", serde_json::Value::from_iter(Shader::all().into_iter().map(shader)));
}

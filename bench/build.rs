//! Compiles the gRPC service that stands for tonic; its messages are the control plane's own.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let schemas = ["proto", "../crates/control/proto"];
    for schema in schemas {
        println!("cargo:rerun-if-changed={schema}");
    }
    let files = protox::compile(["bench.proto"], schemas)?;
    tonic_prost_build::configure()
        .extern_path(".crabtalk.protocol", "::quintet_control::wire")
        .compile_fds(files)?;
    Ok(())
}

//! Compiles the published schema; protox reads it, so no `protoc` has to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/quintet.proto");
    let schema = protox::compile(["quintet.proto"], ["proto"])?;
    prost_build::Config::new()
        // These two carry secrets; their `Debug` is written by hand.
        .skip_debug([
            ".crabtalk.protocol.ClientHello",
            ".crabtalk.protocol.SetConfigMsg",
        ])
        .compile_fds(schema)?;
    Ok(())
}

//! Compiles the published schema; protox reads it, so no `protoc` has to be installed.

use std::path::PathBuf;

use protox::prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/quintet.proto");
    let schema = protox::compile(["quintet.proto"], ["proto"])?;
    // The tests compare the generated code with the schema itself.
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("quintet.bin"), schema.encode_to_vec())?;
    prost_build::Config::new()
        // In order, so that equal messages have equal bytes.
        .btree_map(["."])
        // The rare and large ones, so that a piece of text is not moved in their size.
        .boxed(".crabtalk.protocol.StreamEvent.event.tool_result")
        .boxed(".crabtalk.protocol.StreamEvent.event.end")
        .boxed(".crabtalk.protocol.ServerMessage.msg.response")
        .boxed(".crabtalk.protocol.ServerMessage.msg.agent_event")
        .boxed(".crabtalk.protocol.ServerMessage.msg.stats")
        .boxed(".crabtalk.protocol.ServerMessage.msg.cron_info")
        .boxed(".crabtalk.protocol.ServerMessage.msg.extension")
        // These carry secrets; their `Debug` is written by hand.
        .skip_debug([
            ".crabtalk.protocol.ClientHello",
            ".crabtalk.protocol.SetConfigMsg",
            ".crabtalk.protocol.TokenCreated",
            ".crabtalk.protocol.PairingCode",
        ])
        .compile_fds(schema)?;
    Ok(())
}

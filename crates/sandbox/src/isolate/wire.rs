//! What a worker and its helper say to each other.
//!
//! Both ends are the same program, so there are no versions. Each message is a big-endian u32
//! length and a body. A request's body is byte strings, since paths and environments need not be
//! UTF-8; its three file descriptors travel with its first byte. A reply's body is JSON.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use bytes::{Buf as _, BufMut as _};
use serde::{Deserialize, Serialize};

use super::Feature;

/// The longest request that a helper takes: more than the kernel lets a program have.
pub(super) const MAX_REQUEST: usize = 8 * 1024 * 1024;

/// A program to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// The whole environment.
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) cwd: PathBuf,
}

/// How a program's standard files are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Files {
    Pipes,
    /// All three are one terminal, which becomes the program's own.
    Terminal,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SpawnRequest {
    pub(super) id: u64,
    pub(super) files: Files,
    pub(super) program: Program,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Reply {
    /// The first message: what is in force.
    Ready {
        features: Vec<Feature>,
        /// The cgroup of its commands, which the worker removes: the helper is in it.
        group: Option<PathBuf>,
    },
    Started {
        id: u64,
        pid: i32,
    },
    Failed {
        id: u64,
        errno: i32,
    },
    Exited {
        id: u64,
        code: i32,
    },
    Killed {
        id: u64,
        signal: i32,
    },
}

impl SpawnRequest {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.put_u64(self.id);
        body.put_u8(u8::from(self.files == Files::Terminal));
        put(&mut body, self.program.path.as_os_str());
        put(&mut body, self.program.cwd.as_os_str());
        put_count(&mut body, self.program.args.len());
        for arg in &self.program.args {
            put(&mut body, arg);
        }
        put_count(&mut body, self.program.env.len());
        for (key, value) in &self.program.env {
            put(&mut body, key);
            put(&mut body, value);
        }
        let mut message = Vec::with_capacity(4 + body.len());
        put_count(&mut message, body.len());
        message.extend_from_slice(&body);
        message
    }

    pub(super) fn decode(mut body: &[u8]) -> Option<Self> {
        let body = &mut body;
        let id = body.try_get_u64().ok()?;
        let files = match body.try_get_u8().ok()? {
            0 => Files::Pipes,
            _ => Files::Terminal,
        };
        let path = take(body)?.into();
        let cwd = take(body)?.into();
        let mut args = Vec::new();
        for _ in 0..body.try_get_u32().ok()? {
            args.push(take(body)?);
        }
        let mut env = Vec::new();
        for _ in 0..body.try_get_u32().ok()? {
            env.push((take(body)?, take(body)?));
        }
        body.is_empty().then_some(Self {
            id,
            files,
            program: Program {
                path,
                args,
                env,
                cwd,
            },
        })
    }
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.put_u32(u32::try_from(count).unwrap_or(u32::MAX));
}

fn put(out: &mut Vec<u8>, text: &OsStr) {
    put_count(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn take(body: &mut &[u8]) -> Option<OsString> {
    let len = body.try_get_u32().ok()? as usize;
    let (text, rest) = body.split_at_checked(len)?;
    *body = rest;
    Some(OsString::from_vec(text.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_its_bytes() {
        let request = SpawnRequest {
            id: 7,
            files: Files::Terminal,
            program: Program {
                path: "/bin/sh".into(),
                args: vec!["-c".into(), OsString::from_vec(vec![0xff, b'x'])],
                env: vec![("A".into(), "b c".into())],
                cwd: "/tmp".into(),
            },
        };
        let message = request.encode();
        let (len, body) = message.split_first_chunk::<4>().unwrap();
        assert_eq!(u32::from_be_bytes(*len) as usize, body.len());
        assert_eq!(SpawnRequest::decode(body), Some(request));
        for cut in 0..body.len() {
            assert_eq!(SpawnRequest::decode(&body[..cut]), None);
        }
    }
}

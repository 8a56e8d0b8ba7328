//! Linux: sessions, parent-death signals, pidfds, cgroup v2 and `/proc`.
//!
//! `sys` holds the only unsafe code. Ending a tree works without privileges and gets better with them:
//! with a writable cgroup v2 the kernel knows and kills the whole tree; without one the process is the
//! subreaper of its descendants, and members are found by ancestry, session, process group and by the
//! variable that marks the instance in their environment.

pub(crate) mod cgroup;
pub(crate) mod spawn;
mod sys;
pub(crate) mod tree;

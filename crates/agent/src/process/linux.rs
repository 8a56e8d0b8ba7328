//! Linux: sessions, parent-death signals, pidfds, cgroup v2 and `/proc`.
//!
//! `sys` holds the only unsafe code. Ending a tree works without privileges and gets better with them:
//! with a writable cgroup v2 the kernel knows and kills the whole tree; without one the process is the
//! subreaper of its descendants, and members are found by ancestry, session, process group and by the
//! variable that marks the instance in their environment.
//!
//! What can escape without a cgroup: a process that leaves its session *and* drops the variable *and*
//! whose agent dies by itself before it is stopped. Nothing tells it from the user's other processes.

pub(crate) mod cgroup;
pub(crate) mod spawn;
mod sys;
pub(crate) mod tree;

//! The daemon in one process, with real agents and real clients.

mod asks;
mod crons;
mod cuts;
mod harness;
mod instances;
mod limits;
mod models;
mod pairing;
mod policy;
mod sessions;
mod settings;
mod turns;

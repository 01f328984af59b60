//! `promethean completions`: scripts that let a shell finish what is typed.

use clap::CommandFactory;

use super::out;
use crate::args::Args;
use crate::exit::Failure;

pub(crate) fn run(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "promethean", &mut script);
    out::bytes(&script)
}

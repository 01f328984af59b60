//! `promethean completions`: scripts that let a shell finish what is typed.

use clap::CommandFactory;

use crate::args::Args;
use crate::exit::Failure;

pub(crate) fn run(shell: clap_complete::Shell) -> Result<(), Failure> {
    clap_complete::generate(shell, &mut Args::command(), "promethean", &mut std::io::stdout());
    Ok(())
}

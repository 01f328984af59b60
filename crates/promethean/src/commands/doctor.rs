//! `promethean doctor`: what is wrong with a data directory, and what can be saved.

use crate::args::DoctorArgs;
use crate::exit::Failure;

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    Err(Failure::failed(format!("{}: this build has no log engine yet", args.dir.display())))
}

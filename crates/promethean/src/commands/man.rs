//! `promethean man`: manual pages, made from the same table as `--help`.

use std::path::Path;

use clap::CommandFactory;

use super::{out, print};
use crate::args::Args;
use crate::exit::Failure;

pub(crate) fn run(dir: Option<&Path>) -> Result<(), Failure> {
    let command = Args::command();
    match dir {
        None => {
            let page = clap_mangen::Man::new(command);
            print::written(page.render(&mut std::io::stdout().lock()))
        }
        Some(dir) => {
            let failed = |error| Failure::failed(format!("{} cannot be written: {error}", dir.display()));
            std::fs::create_dir_all(dir).map_err(failed)?;
            clap_mangen::generate_to(command, dir).map_err(failed)?;
            out::done(&format!("manual pages are in {0}; man -l {0}/promethean.1", dir.display()));
            Ok(())
        }
    }
}

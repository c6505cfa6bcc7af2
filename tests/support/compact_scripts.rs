//! Which files of lua/compact/ are scripts, and which are preambles, as defined in src/engine/redis/compact/scripts.rs.

use std::collections::BTreeSet;
use std::path::Path;

/// Every file of the directory is one or the other.
pub struct CompactScripts {
    #[allow(dead_code)] // not every test binary runs them
    pub scripts: Vec<String>,
    /// In dependency order.
    pub preambles: Vec<String>,
}

impl CompactScripts {
    pub fn read() -> CompactScripts {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text =
            std::fs::read_to_string(root.join("src/engine/redis/compact/scripts.rs")).expect("it is there");
        let (_, table) = text.split_once("\nscripts! {\n").expect("a table of scripts");
        let (table, _) = table.split_once("\n}\n").expect("its end");
        // `    name: part part`, and further parts on lines with a deeper indent.
        let entries = table.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(':'));
        let names = entries.map(|(name, _)| name.to_owned());
        let is_name = |name: &String| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let scripts: Vec<String> = names.filter(is_name).collect();
        let mut preambles = vec!["base".to_owned()];
        for file in text.split("file \"").skip(1).filter_map(|rest| rest.split('"').next()) {
            if !preambles.iter().chain(&scripts).any(|known| known == file) {
                preambles.push(file.to_owned());
            }
        }
        let files = std::fs::read_dir(root.join("lua/compact")).expect("a directory");
        let files = files.map(|entry| entry.expect("a file").file_name().into_string().expect("a name"));
        let files: BTreeSet<String> =
            files.map(|name| name.strip_suffix(".lua").expect("a script").to_owned()).collect();
        let known: BTreeSet<String> = scripts.iter().chain(&preambles).cloned().collect();
        assert_eq!(known, files, "the files in the table, and the existing ones");
        CompactScripts { scripts, preambles }
    }
}

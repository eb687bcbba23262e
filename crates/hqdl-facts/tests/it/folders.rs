//! Tests of the cache's folder: only its owner can read it, and a misspelled URL never creates one.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hqdl_facts::Facts;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn an_existing_empty_folder_becomes_private() {
    let dir = tempfile::tempdir().unwrap();
    set_mode(dir.path(), 0o755);
    let _facts = Facts::open(dir.path(), "test").unwrap();
    assert_eq!(mode(dir.path()), 0o700);
    for file in ["journal.sqlite", "journal.sqlite-wal", "index.sqlite", "index.sqlite-wal", "lock"]
    {
        assert_eq!(mode(&dir.path().join(file)), 0o600, "{file}");
    }
    assert_eq!(mode(&dir.path().join("sessions")), 0o700);
}

#[test]
fn a_cache_of_an_earlier_version_becomes_private() {
    let dir = tempfile::tempdir().unwrap();
    drop(Facts::open_with_index(dir.path(), "test", std::time::Duration::ZERO).unwrap());
    set_mode(dir.path(), 0o755);
    set_mode(&dir.path().join("index.sled"), 0o755);
    set_mode(&dir.path().join("journal.sqlite"), 0o644);
    let _facts = Facts::open_with_index(dir.path(), "test", std::time::Duration::ZERO).unwrap();
    assert_eq!(mode(dir.path()), 0o700);
    assert_eq!(mode(&dir.path().join("index.sled")), 0o700);
    assert_eq!(mode(&dir.path().join("journal.sqlite")), 0o600);
    assert_eq!(mode(&dir.path().join("journal.sqlite-wal")), 0o600);
}

#[test]
fn a_folder_with_other_files_keeps_its_mode_and_the_cache_in_it_is_private() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("cities.db"), "").unwrap();
    set_mode(dir.path(), 0o755);
    let _facts = Facts::open(dir.path(), "test").unwrap();
    assert_eq!(mode(dir.path()), 0o755);
    assert_eq!(mode(&dir.path().join("index.sqlite")), 0o600);
    assert_eq!(mode(&dir.path().join("journal.sqlite")), 0o600);
}

#[test]
fn an_unknown_url_is_not_used_as_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    for url in ["mysql://x", "postgress://user@host/database"] {
        let path = dir.path().join(url);
        for opened in [
            Facts::open(&path, "test"),
            Facts::open_with_index(&path, "test", std::time::Duration::ZERO),
        ] {
            let message = opened.err().expect(url).to_string();
            assert!(message.contains("postgres://"), "{url}: {message}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let opened = Facts::open(Path::new("postgres:/user@host/database"), "test");
    assert!(opened.err().unwrap().to_string().contains("postgres://"));
    assert!(!Path::new("postgres:").exists());
}

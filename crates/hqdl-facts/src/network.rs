//! Recognizes directories on network file systems, where `SQLite`'s locks and shared memory do not
//! work between machines.

use std::path::Path;

/// Types of file systems that several machines may share.
const NETWORK_TYPES: [&str; 17] = [
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse.ceph",
    "fuse.glusterfs",
    "fuse.sshfs",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "smb3",
    "smbfs",
    "davfs",
];

/// Returns the type of the network file system that contains a directory. Returns `None` for a
/// local file system, or if the operating system does not list its mounts.
pub(super) fn detect_network_file_system(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    find_network_file_system(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, &dir)
}

/// Returns the file system type if the directory is on a network mount. The mount with the longest
/// matching mount point decides; if several match equally, the last one.
fn find_network_file_system(mounts: &str, dir: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (head, tail) = line.split_once(" - ")?;
        // The kernel writes a space in a path as an octal escape.
        let point = head.split(' ').nth(4)?.replace("\\040", " ");
        let file_system = tail.split(' ').next()?.to_owned();
        dir.starts_with(&point).then_some((point.len(), file_system))
    };
    let (_, file_system) = mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length)?;
    NETWORK_TYPES.contains(&file_system.as_str()).then_some(file_system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_decides() {
        let mounts = "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      28 27 0:40 / /mnt/a\\040share rw shared:1 - nfs4 host:/x rw\n\
                      29 28 254:1 / /mnt/a\\040share/local rw - xfs /dev/vdb rw";
        let found = |dir: &str| find_network_file_system(mounts, Path::new(dir));
        assert_eq!(found("/home/me"), None);
        assert_eq!(found("/mnt/a share/cache").as_deref(), Some("nfs4"));
        assert_eq!(found("/mnt/a share/local/cache"), None);
        assert_eq!(found("/mnt/a shareholder"), None);
    }
}

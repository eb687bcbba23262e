//! A `PostgreSQL` server for tests, in a temporary directory, on a socket and a loopback port. The
//! tests of one process share a server, each with its own database. Tests that kill a server start
//! their own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio_postgres::{NoTls, SimpleQueryMessage};

/// Directory of the `PostgreSQL` programs when the tests were built.
const PROGRAM_DIR: Option<&str> = option_env!("HQDL_POSTGRES");
/// User id of the server if the tests run as root, because `PostgreSQL` refuses to run as root.
const UNPRIVILEGED_ID: u32 = 65534;

/// A server that runs until this process ends, even if the process is killed.
pub struct Server {
    dir: PathBuf,
    port: u16,
    /// Stops the server and removes the directory when its stdin is closed.
    _guard: Child,
}

impl Server {
    /// Starts a server.
    pub fn start_server() -> Self {
        let dir = tempfile::Builder::new().prefix("hqdl-pg-").tempdir().unwrap().keep();
        // Choose a port outside the ephemeral range; otherwise another process could get it before
        // the server listens.
        let mut ports = std::iter::repeat_with(|| fastrand::u16(20_000..32_000));
        let port = ports.find(|p| TcpListener::bind(("127.0.0.1", *p)).is_ok()).unwrap();
        if is_root() {
            std::os::unix::fs::chown(&dir, Some(UNPRIVILEGED_ID), Some(UNPRIVILEGED_ID)).unwrap();
        }
        let guard = program_command("sh")
            .args(["-c", "cat >/dev/null; \"$1/pg_ctl\" -D \"$2/data\" -m immediate stop >/dev/null 2>&1; rm -rf \"$2\"", "guard"])
            .args([Path::new(PROGRAM_DIR.unwrap()), &dir])
            .current_dir("/")
            .stdin(Stdio::piped())
            // If the process group of the tests is killed, the guard survives and stops the server.
            .process_group(0)
            .spawn()
            .unwrap();
        let server = Self { dir, port, _guard: guard };
        let data = server.dir.join("data");
        run_command(
            program_command("initdb")
                .arg("-D")
                .arg(&data)
                .args(["-U", "owner", "-A", "trust", "-N"])
                .args(["-E", "UTF8", "--locale=C"]),
        );
        let mut settings =
            std::fs::OpenOptions::new().append(true).open(data.join("postgresql.conf")).unwrap();
        let sockets = server.dir.display();
        // Without fsync, a killed server loses nothing; only a power failure would lose data.
        writeln!(
            settings,
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{sockets}'\n\
             fsync = off\nmax_connections = 200\nshared_buffers = 32MB\nmax_wal_size = 4GB"
        )
        .unwrap();
        // Some users need a password.
        let access = "hostnossl secured all 127.0.0.1/32 reject\nhost all owner 127.0.0.1/32 trust\nhost guarded all 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\nlocal all all trust\n";
        std::fs::write(data.join("pg_hba.conf"), access).unwrap();
        server.restart();
        server
    }

    /// Starts the server again after a kill.
    pub fn restart(&self) {
        let log = self.dir.join("log");
        run_command(self.pg_ctl_command().args(["-w", "-t", "120", "start", "-l"]).arg(log));
    }

    /// Stops the server like a crash.
    pub fn crash(&self) {
        run_command(self.pg_ctl_command().args(["-m", "immediate", "-w", "stop"]));
    }

    fn pg_ctl_command(&self) -> Command {
        let mut control = program_command("pg_ctl");
        control.arg("-D").arg(self.dir.join("data"));
        control
    }

    /// Enables TLS with a certificate and its key.
    pub fn enable_tls(&self, (certificate, key): &(Vec<u8>, Vec<u8>)) {
        for (name, bytes) in [("server.crt", certificate), ("server.key", key)] {
            let path = self.dir.join("data").join(name);
            std::fs::write(&path, bytes).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&path, mode).unwrap();
            if is_root() {
                std::os::unix::fs::chown(&path, Some(UNPRIVILEGED_ID), Some(UNPRIVILEGED_ID))
                    .unwrap();
            }
        }
        self.execute_sql("postgres", "ALTER SYSTEM SET ssl = on");
        self.execute_sql("postgres", "SELECT pg_reload_conf()");
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Creates a database and returns its URL.
    pub fn create_database(&self) -> String {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", LAST.fetch_add(1, Ordering::Relaxed));
        self.execute_sql("postgres", &format!("CREATE DATABASE {name}"));
        self.database_url(&name)
    }

    /// Returns the URL of a database.
    pub fn database_url(&self, name: &str) -> String {
        format!("postgres://owner@127.0.0.1:{}/{name}", self.port)
    }

    /// Executes SQL in a database and returns all rows.
    pub fn execute_sql(&self, database: &str, sql: &str) -> Vec<Vec<Option<String>>> {
        sql_at(&self.database_url(database), sql)
    }
}

/// Rows with values as text.
pub type TextRows = Vec<Vec<Option<String>>>;

/// Executes `sql` on the database at `url` and returns all rows.
pub fn sql_at(url: &str, sql: &str) -> TextRows {
    try_all(url, [sql]).pop().unwrap().unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Executes queries one after the other on the database at `url`. Returns the rows or the error of
/// each.
pub fn try_all<'q>(
    url: &str,
    queries: impl IntoIterator<Item = &'q str>,
) -> Vec<Result<TextRows, String>> {
    let row = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|n| row.get(n).map(str::to_owned)).collect())
        }
        _ => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let mut all = Vec::new();
        for sql in queries {
            let result = client.simple_query(sql).await.map_err(|e| format!("{e:?}"));
            all.push(result.map(|result| result.iter().filter_map(row).collect()));
        }
        all
    })
}

/// A lock that a connection of its own holds, released on drop.
pub struct HeldLock {
    _runtime: tokio::runtime::Runtime,
    _client: tokio_postgres::Client,
}

impl HeldLock {
    /// Acquires the session-level advisory lock with this number.
    pub fn acquire(url: &str, number: i64) -> Self {
        Self::acquire_by(url, &format!("SELECT pg_advisory_lock({number})"))
    }

    /// Acquires the locks of these statements, such as `BEGIN; SELECT … FOR UPDATE`.
    pub fn acquire_by(url: &str, sql: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            client.simple_query(sql).await.unwrap();
            client
        });
        Self { _runtime: runtime, _client: client }
    }
}

/// Creates a database on the server shared by this process's tests and returns its URL.
pub fn create_database() -> String {
    shared_server().create_database()
}

/// Returns the server shared by this process's tests.
pub fn shared_server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(Server::start_server)
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// Returns a command for a `PostgreSQL` program or another program; as root, it runs as another
/// user.
fn program_command(name: &str) -> Command {
    use std::os::unix::process::CommandExt;
    let path = Path::new(PROGRAM_DIR.expect("PostgreSQL is not installed")).join(name);
    let mut command = Command::new(if path.exists() { path } else { name.into() });
    command.current_dir("/").env("LC_ALL", "C");
    if is_root() {
        command.uid(UNPRIVILEGED_ID).gid(UNPRIVILEGED_ID);
    }
    command
}

fn run_command(command: &mut Command) {
    // Write to a file: a pipe would stay open as long as the server runs.
    let output = tempfile::tempfile().unwrap();
    let status = command
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output.try_clone().unwrap())
        .status()
        .unwrap();
    let read = || {
        use std::io::Seek;
        let (mut output, mut text) = (output, String::new());
        output.rewind().unwrap();
        output.read_to_string(&mut text).unwrap();
        text
    };
    assert!(status.success(), "{command:?}: {}", read());
}

/// A TCP proxy that can be blocked. While it is blocked, connections stay open without traffic, as
/// with an unplugged cable.
pub struct Proxy {
    port: u16,
    state: Arc<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    is_blocked: AtomicBool,
    /// Delay of each chunk in each direction, in milliseconds.
    delay_ms: AtomicU64,
    /// Loses what the server answers.
    deaf: AtomicBool,
    open: Mutex<Vec<ProxyConnection>>,
}

/// A connection that goes through.
struct ProxyConnection {
    ends: [TcpStream; 2],
    /// Data in transit never arrives, nor does the end of the connection.
    lost: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts a proxy to a port of this machine.
    pub fn new_to_port(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let state = Arc::new(ProxyState::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let ends = [client.try_clone().unwrap(), server.try_clone().unwrap()];
                let lost = Arc::new(AtomicBool::new(false));
                let connection = ProxyConnection { ends, lost: Arc::clone(&lost) };
                shared.open.lock().unwrap().push(connection);
                let directions =
                    [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
                for ((from, to), answers) in directions.into_iter().zip([false, true]) {
                    let (state, lost) = (Arc::clone(&shared), Arc::clone(&lost));
                    std::thread::spawn(move || forward(from, to, answers, &state, &lost));
                }
            }
        });
        Self { port: own_port, state }
    }

    /// Returns the URL of a database through the proxy.
    pub fn database_url(&self, database: &str) -> String {
        let name = database.rsplit('/').next().unwrap();
        format!("postgres://owner@127.0.0.1:{}/{name}", self.port)
    }

    /// Blocks all traffic.
    pub fn block(&self) {
        self.state.is_blocked.store(true, Ordering::SeqCst);
    }

    /// Unblocks all traffic.
    pub fn unblock(&self) {
        self.state.is_blocked.store(false, Ordering::SeqCst);
    }

    /// Connections end. What was sent to the server within the last milliseconds is done there,
    /// and its answers are lost.
    pub fn sever(&self, milliseconds: u64) {
        self.state.deaf.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(milliseconds));
        for connection in self.state.open.lock().unwrap().drain(..) {
            connection.ends.iter().for_each(|end| drop(end.shutdown(std::net::Shutdown::Both)));
        }
        self.state.deaf.store(false, Ordering::SeqCst);
    }

    /// Nothing goes through for some time; then clients see their connections end, and the
    /// server never does. New connections work.
    pub fn half_open(&self, milliseconds: u64) {
        self.block();
        std::thread::sleep(Duration::from_millis(milliseconds));
        for connection in self.state.open.lock().unwrap().drain(..) {
            connection.lost.store(true, Ordering::SeqCst);
            let [client, server] = connection.ends;
            let _ = client.shutdown(std::net::Shutdown::Both);
            // It stays open.
            std::mem::forget(server);
        }
        self.unblock();
    }

    /// Sets the delay in each direction.
    pub fn set_delay(&self, milliseconds: u64) {
        self.state.delay_ms.store(milliseconds, Ordering::SeqCst);
    }
}

/// Forwards data from one stream to the other, with the current delay.
fn forward(
    mut from: TcpStream,
    mut to: TcpStream,
    answers: bool,
    state: &Arc<ProxyState>,
    lost: &Arc<AtomicBool>,
) {
    let (sender, receiver) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
    let (held, lost) = (Arc::clone(state), Arc::clone(lost));
    std::thread::spawn(move || {
        for (due, chunk) in receiver {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            while held.is_blocked.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if lost.load(Ordering::SeqCst) || to.write_all(&chunk).is_err() {
                return;
            }
        }
        if !lost.load(Ordering::SeqCst) {
            let _ = to.shutdown(std::net::Shutdown::Both);
        }
    });
    let mut chunk = vec![0; 1 << 16];
    while let Ok(n) = from.read(&mut chunk) {
        if n > 0 && answers && state.deaf.load(Ordering::SeqCst) {
            continue;
        }
        let delay = Duration::from_millis(state.delay_ms.load(Ordering::SeqCst));
        if n == 0 || sender.send((Instant::now() + delay, chunk[..n].to_vec())).is_err() {
            return;
        }
    }
}

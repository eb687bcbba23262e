//! A `PostgreSQL` of the tests' own, in a temporary folder, on a socket and a port of
//! loopback. The tests of one process share one server, and each has a database of
//! its own; who kills a server starts one for itself.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio_postgres::{NoTls, SimpleQueryMessage};

/// The programs, where they were when the tests were built.
const PROGRAMS: Option<&str> = option_env!("HQDL_POSTGRES");
/// Whom a server runs as where the tests are root: it refuses that one.
const NOBODY: u32 = 65534;

/// A server, until this process ends, however it does.
pub struct Server {
    dir: PathBuf,
    port: u16,
    /// Ends the server and removes the folder when its stdin ends.
    _guard: Child,
}

impl Server {
    /// Starts one.
    pub fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("hqdl-pg-").tempdir().unwrap().keep();
        // Not one of those that systems give out by themselves: until the server listens,
        // somebody else might be given it.
        let mut ports = std::iter::repeat_with(|| fastrand::u16(20_000..32_000));
        let port = ports.find(|p| TcpListener::bind(("127.0.0.1", *p)).is_ok()).unwrap();
        if is_root() {
            std::os::unix::fs::chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let guard = program("sh")
            .args(["-c", "cat >/dev/null; \"$1/pg_ctl\" -D \"$2/data\" -m immediate stop >/dev/null 2>&1; rm -rf \"$2\"", "guard"])
            .args([Path::new(PROGRAMS.unwrap()), &dir])
            .current_dir("/")
            .stdin(Stdio::piped())
            // Who ends the tests' group leaves it to end the server.
            .process_group(0)
            .spawn()
            .unwrap();
        let server = Self { dir, port, _guard: guard };
        let data = server.dir.join("data");
        run(program("initdb")
            .arg("-D")
            .arg(&data)
            .args(["-U", "owner", "-A", "trust", "-N"])
            .args(["-E", "UTF8", "--locale=C"]));
        let mut settings =
            std::fs::OpenOptions::new().append(true).open(data.join("postgresql.conf")).unwrap();
        let sockets = server.dir.display();
        // A kill of the server loses nothing without fsync; a power cut would.
        writeln!(
            settings,
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{sockets}'\n\
             fsync = off\nmax_connections = 200\nshared_buffers = 32MB\nmax_wal_size = 4GB"
        )
        .unwrap();
        // Some users need a password.
        let access = "hostnossl secured all 127.0.0.1/32 reject\nhost all owner 127.0.0.1/32 trust\nhost guarded all 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\nlocal all all trust\n";
        std::fs::write(data.join("pg_hba.conf"), access).unwrap();
        server.go_on();
        server
    }

    /// Starts it again after a kill.
    pub fn go_on(&self) {
        let log = self.dir.join("log");
        run(self.control().args(["-w", "-t", "120", "start", "-l"]).arg(log));
    }

    /// Kills it, as a crash would.
    pub fn kill(&self) {
        run(self.control().args(["-m", "immediate", "-w", "stop"]));
    }

    fn control(&self) -> Command {
        let mut control = program("pg_ctl");
        control.arg("-D").arg(self.dir.join("data"));
        control
    }

    /// Encrypts what is sent, with a certificate and its key.
    pub fn secure(&self, (certificate, key): &(Vec<u8>, Vec<u8>)) {
        for (name, bytes) in [("server.crt", certificate), ("server.key", key)] {
            let path = self.dir.join("data").join(name);
            std::fs::write(&path, bytes).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&path, mode).unwrap();
            if is_root() {
                std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        self.sql("postgres", "ALTER SYSTEM SET ssl = on");
        self.sql("postgres", "SELECT pg_reload_conf()");
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A new database in it: its URL.
    pub fn database(&self) -> String {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", LAST.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// The URL of a database.
    pub fn url(&self, name: &str) -> String {
        format!("postgres://owner@127.0.0.1:{}/{name}", self.port)
    }

    /// Runs SQL in a database.
    pub fn sql(&self, database: &str, sql: &str) -> Vec<Vec<Option<String>>> {
        sql_at(&self.url(database), sql)
    }
}

/// Rows, as texts.
pub type TextRows = Vec<Vec<Option<String>>>;

/// Runs SQL where a URL says; the rows of all of it.
pub fn sql_at(url: &str, sql: &str) -> TextRows {
    try_all(url, [sql]).pop().unwrap().unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Runs queries where a URL says, one after the other; the rows of each, or its error.
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
            let told = client.simple_query(sql).await.map_err(|e| format!("{e:?}"));
            all.push(told.map(|told| told.iter().filter_map(row).collect()));
        }
        all
    })
}

/// An advisory lock that is held until this is dropped.
pub struct Held {
    _runtime: tokio::runtime::Runtime,
    _client: tokio_postgres::Client,
}

impl Held {
    /// Takes the lock of a number, of the session.
    pub fn lock(url: &str, number: i64) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            client.simple_query(&format!("SELECT pg_advisory_lock({number})")).await.unwrap();
            client
        });
        Self { _runtime: runtime, _client: client }
    }
}

/// A new database of the server that all tests of this process share: its URL.
pub fn database() -> String {
    shared().database()
}

/// The server that all tests of this process share.
pub fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(Server::start)
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// A program of `PostgreSQL`, or another, as whoever may run it.
fn program(name: &str) -> Command {
    use std::os::unix::process::CommandExt;
    let path = Path::new(PROGRAMS.expect("PostgreSQL is not installed")).join(name);
    let mut command = Command::new(if path.exists() { path } else { name.into() });
    command.current_dir("/").env("LC_ALL", "C");
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn run(command: &mut Command) {
    // To files: a server that goes on would hold a pipe open.
    let said = tempfile::tempfile().unwrap();
    let status = command
        .stdin(Stdio::null())
        .stdout(said.try_clone().unwrap())
        .stderr(said.try_clone().unwrap())
        .status()
        .unwrap();
    let read = || {
        use std::io::Seek;
        let (mut said, mut text) = (said, String::new());
        said.rewind().unwrap();
        said.read_to_string(&mut text).unwrap();
        text
    };
    assert!(status.success(), "{command:?}: {}", read());
}

/// A way to a server that can be cut: connections are held without a word, as when
/// a cable is out, until it is mended.
pub struct Proxy {
    port: u16,
    state: Arc<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    cut: AtomicBool,
    /// Milliseconds that each piece takes, there and back.
    delay: AtomicU64,
    /// Loses what the server answers.
    deaf: AtomicBool,
    open: Mutex<Vec<ProxyConnection>>,
}

/// A connection that goes through.
struct ProxyConnection {
    ends: [TcpStream; 2],
    /// What is under way on it never arrives, its end neither.
    lost: Arc<AtomicBool>,
}

impl Proxy {
    /// A way to a port of this machine.
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
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
                let ways =
                    [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
                for ((from, to), answers) in ways.into_iter().zip([false, true]) {
                    let (state, lost) = (Arc::clone(&shared), Arc::clone(&lost));
                    std::thread::spawn(move || carry(from, to, answers, &state, &lost));
                }
            }
        });
        Self { port: own, state }
    }

    /// The URL of a database of the server, this way.
    pub fn url(&self, database: &str) -> String {
        let name = database.rsplit('/').next().unwrap();
        format!("postgres://owner@127.0.0.1:{}/{name}", self.port)
    }

    /// Nothing goes through.
    pub fn cut(&self) {
        self.state.cut.store(true, Ordering::SeqCst);
    }

    /// Everything goes through again.
    pub fn mend(&self) {
        self.state.cut.store(false, Ordering::SeqCst);
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
        self.cut();
        std::thread::sleep(Duration::from_millis(milliseconds));
        for connection in self.state.open.lock().unwrap().drain(..) {
            connection.lost.store(true, Ordering::SeqCst);
            let [client, server] = connection.ends;
            let _ = client.shutdown(std::net::Shutdown::Both);
            // It stays open.
            std::mem::forget(server);
        }
        self.mend();
    }

    /// Whatever goes through takes so long each way.
    pub fn delay(&self, milliseconds: u64) {
        self.state.delay.store(milliseconds, Ordering::SeqCst);
    }
}

/// Carries what comes, each piece as late as the way is long.
fn carry(
    mut from: TcpStream,
    mut to: TcpStream,
    answers: bool,
    state: &Arc<ProxyState>,
    lost: &Arc<AtomicBool>,
) {
    let (pieces, arriving) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
    let (held, lost) = (Arc::clone(state), Arc::clone(lost));
    std::thread::spawn(move || {
        for (at, piece) in arriving {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            while held.cut.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if lost.load(Ordering::SeqCst) || to.write_all(&piece).is_err() {
                return;
            }
        }
        if !lost.load(Ordering::SeqCst) {
            let _ = to.shutdown(std::net::Shutdown::Both);
        }
    });
    let mut piece = vec![0; 1 << 16];
    while let Ok(n) = from.read(&mut piece) {
        if n > 0 && answers && state.deaf.load(Ordering::SeqCst) {
            continue;
        }
        let late = Duration::from_millis(state.delay.load(Ordering::SeqCst));
        if n == 0 || pieces.send((Instant::now() + late, piece[..n].to_vec())).is_err() {
            return;
        }
    }
}

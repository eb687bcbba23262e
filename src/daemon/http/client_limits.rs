//! Limits each client: requests per second, concurrent streams, and bytes per minute. A client that
//! exceeds a limit gets 429 with `Retry-After`; other clients are unaffected.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use hyper::body::{Frame, SizeHint};

use super::reply::HttpError;
use crate::daemon::ClientLimits;

/// Period to which the byte limit applies.
const MINUTE: Duration = Duration::from_secs(60);
/// Number of bytes that count as one unit of the rate limiter.
const CELL: u64 = 1000;
/// Number of clients above which idle clients are removed.
const MAX_CLIENTS: usize = 4096;
/// `Retry-After` for a client that has too many open streams.
const STREAM_RETRY: Duration = Duration::from_secs(1);

/// Identity of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum DaemonClient {
    /// An IPv4 address, or the /64 network of an IPv6 address.
    Address(IpAddr),
    /// A user of this machine, connected through the Unix socket.
    User(Option<u32>),
}

impl fmt::Display for DaemonClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::User(Some(user)) => write!(f, "user {user}"),
            Self::User(None) => write!(f, "an unknown user"),
        }
    }
}

impl DaemonClient {
    pub(super) fn from_address(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(v6) if !v6.is_loopback() => {
                Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into()
            }
            other => other,
        })
    }

    /// Returns the client behind a trusted proxy: the last address of `X-Forwarded-For` that is not
    /// a trusted proxy. If the peer is not trusted, the client is the peer itself, regardless of
    /// its headers.
    pub(super) fn from_forwarded_header(
        peer: IpAddr,
        headers: &HeaderMap,
        trusted: &[IpAddr],
    ) -> Self {
        let mut client = peer.to_canonical();
        let forwarded = headers.get_all("x-forwarded-for").iter().rev();
        let mut hops = forwarded.filter_map(|v| v.to_str().ok()).flat_map(|v| v.rsplit(','));
        while trusted.contains(&client) {
            let Some(hop) = hops.next().and_then(parse_forwarded_address) else { break };
            client = hop.to_canonical();
        }
        Self::from_address(client)
    }
}

/// Parses an address with or without a port.
fn parse_forwarded_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let with_port = || text.parse::<std::net::SocketAddr>().ok().map(|address| address.ip());
    text.parse().ok().or_else(with_port)
}

/// A rejected request: the response, and the number of seconds after which the client may retry.
pub(super) struct LimitExceeded {
    error: HttpError,
    seconds: u32,
}

impl IntoResponse for LimitExceeded {
    fn into_response(self) -> Response {
        let mut response = self.error.into_response();
        response.headers_mut().insert(header::RETRY_AFTER, self.seconds.into());
        response
    }
}

/// Usage of all clients.
pub(super) struct ClientShares {
    limits: ClientLimits,
    table: Mutex<HashMap<DaemonClient, Arc<ClientShare>>>,
}

/// Usage of one client.
struct ClientShare {
    limits: ClientLimits,
    requests: Option<DefaultDirectRateLimiter>,
    bytes: Option<DefaultDirectRateLimiter>,
    usage: Mutex<ShareUsage>,
}

struct ShareUsage {
    streams: u32,
    /// Number of sent bytes that have not been charged to the limiter yet.
    unpaid: u64,
    last_request: Instant,
}

impl ClientShares {
    pub(super) fn new(limits: ClientLimits) -> Self {
        Self { limits, table: Mutex::default() }
    }

    /// Admits a request, or rejects it with 429. The returned guard must live as long as the
    /// response.
    pub(super) fn admit_request(
        &self,
        client: DaemonClient,
        is_stream: bool,
    ) -> Result<AdmittedRequest, LimitExceeded> {
        let share = self.get_or_create_share(client);
        share.charge_request()?;
        share.charge_bytes()?;
        if is_stream {
            share.open_stream()?;
        }
        Ok(AdmittedRequest { share, is_stream })
    }

    fn get_or_create_share(&self, client: DaemonClient) -> Arc<ClientShare> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= MAX_CLIENTS && !table.contains_key(&client) {
            table.retain(|_, share| share.is_active());
        }
        let new = || Arc::new(ClientShare::new(self.limits));
        Arc::clone(table.entry(client).or_insert_with(new))
    }
}

impl ClientShare {
    fn new(limits: ClientLimits) -> Self {
        let requests = NonZeroU32::new(limits.requests).map(|requests| {
            let burst = NonZeroU32::new(limits.burst).unwrap_or(NonZeroU32::MIN);
            RateLimiter::direct(Quota::per_second(requests).allow_burst(burst))
        });
        let usage = ShareUsage { streams: 0, unpaid: 0, last_request: Instant::now() };
        Self { limits, requests, bytes: create_byte_limiter(limits), usage: Mutex::new(usage) }
    }

    fn lock_usage(&self) -> MutexGuard<'_, ShareUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_active(&self) -> bool {
        let usage = self.lock_usage();
        usage.streams > 0 || usage.unpaid >= CELL || usage.last_request.elapsed() < MINUTE
    }

    fn charge_request(&self) -> Result<(), LimitExceeded> {
        self.lock_usage().last_request = Instant::now();
        let Some(limiter) = &self.requests else { return Ok(()) };
        limiter.check().map_err(|until| {
            let most = format!("{} a second", format_plural(self.limits.requests, "request"));
            limit_exceeded_error(&most, until.wait_time_from(DefaultClock::default().now()))
        })
    }

    /// Charges the bytes of earlier responses. A stream that exceeds the limit is not cut off;
    /// instead, later requests are rejected until the limit admits them.
    fn charge_bytes(&self) -> Result<(), LimitExceeded> {
        let Some(limiter) = &self.bytes else { return Ok(()) };
        let most = compute_bytes_quota(self.limits);
        let mut usage = self.lock_usage();
        loop {
            let cells = usage.unpaid / CELL;
            let now = u32::try_from(cells).unwrap_or(u32::MAX).min(most);
            let Some(n) = NonZeroU32::new(now) else { return Ok(()) };
            match limiter.check_n(n) {
                Ok(Err(until)) => {
                    let rest = (cells - u64::from(now)) as f64 / f64::from(most);
                    let wait = until.wait_time_from(DefaultClock::default().now());
                    let most = format!("{} MB a minute", self.limits.megabytes);
                    return Err(limit_exceeded_error(&most, wait + MINUTE.mul_f64(rest)));
                }
                _ => usage.unpaid -= u64::from(now) * CELL,
            }
        }
    }

    fn open_stream(&self) -> Result<(), LimitExceeded> {
        let mut usage = self.lock_usage();
        let most = self.limits.streams;
        if most > 0 && usage.streams >= most {
            return Err(limit_exceeded_error(
                &format!("{} at once", format_plural(most, "stream")),
                STREAM_RETRY,
            ));
        }
        usage.streams += 1;
        Ok(())
    }
}

fn create_byte_limiter(limits: ClientLimits) -> Option<DefaultDirectRateLimiter> {
    let cells = NonZeroU32::new(compute_bytes_quota(limits))?;
    let quota = Quota::with_period(MINUTE / cells.get())?.allow_burst(cells);
    Some(RateLimiter::direct(quota))
}

fn compute_bytes_quota(limits: ClientLimits) -> u32 {
    limits.megabytes.saturating_mul(1_000_000 / CELL as u32)
}

fn format_plural(n: u32, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

fn limit_exceeded_error(most: &str, wait: Duration) -> LimitExceeded {
    let seconds = wait.as_secs_f64().ceil().max(1.0) as u32;
    let error = HttpError::new(
        StatusCode::TOO_MANY_REQUESTS,
        format!("this client exceeds its limit: {most}"),
        &format!(
            "retry in {}; `hqdl daemon --help` lists the limits of clients",
            format_plural(seconds, "second")
        ),
    );
    LimitExceeded { error, seconds }
}

/// A guard for an admitted request. It lives until the response has been sent.
pub(super) struct AdmittedRequest {
    share: Arc<ClientShare>,
    is_stream: bool,
}

impl AdmittedRequest {
    /// Counts the bytes of a response, and keeps the guard until the response ends.
    pub(super) fn count_body_bytes(self, body: Body) -> Body {
        Body::new(CountedBody { body, admitted: self })
    }
}

impl Drop for AdmittedRequest {
    fn drop(&mut self) {
        if self.is_stream {
            self.share.lock_usage().streams -= 1;
        }
    }
}

struct CountedBody {
    body: Body,
    admitted: AdmittedRequest,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(data) = frame.as_ref().and_then(|f| f.as_ref().ok()?.data_ref()) {
            self.admitted.share.lock_usage().unpaid += data.len() as u64;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

//! What the owner of a cache and those it lends it to say to each other, over a
//! Unix socket: a greeting of fixed form both ways, then frames, each a length
//! (four bytes, little endian) and a message in postcard. Requests carry a
//! number, their answers the same one; 0 asks for no answer.

use std::io::{self, Read, Write};
use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::FactsError;
use crate::ids::{ReservationId, RunId};
use crate::in_flight::ClaimKey;
use crate::limits::{Need, PerMinute, RateLimitHint};
use crate::sessions::FactsSession;
use crate::store::{CommitUnit, ReserveOutcome};
use crate::throttle::LimiterKey;
use hqdl_values::usage::SpentAmount;

/// What both sides begin with; then the protocol's number.
pub(super) const MAGIC: &[u8; 4] = b"hqdl";
/// The protocol; another number is another language.
pub(super) const PROTOCOL: u32 = 4;
/// The longest frame.
pub(super) const LONGEST: usize = 64 << 20;
/// About how many bytes of records go into one frame.
pub(super) const FULL: usize = 4 << 20;

/// What a borrower begins with, after its greeting.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Hello {
    /// It looks things up, or asks for the status.
    Looks,
    /// It does work: its session is over when its connection is.
    Works {
        /// What it says of itself.
        holder: String,
    },
}

/// What the owner answers to that.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    /// Its process.
    pub process: u32,
    /// The borrower's session; empty for one that only looks.
    pub session: String,
}

/// What a borrower asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// The records of some entities: as many of the first ones as fit.
    Get(Vec<String>),
    /// Records in the order of their entities, from after one on, up to about so
    /// many bytes.
    Page { after: String, full: usize },
    /// The index written to the disk.
    Flush,
    /// The index made again.
    Rebuild,
    /// A completion and its facts kept.
    Keep(Box<CommitUnit>),
    /// What a request may cost noted.
    Reserve { run: RunId, worst: SpentAmount, of_day: Option<f64>, place: Option<LimiterKey> },
    /// A request ended without an answer.
    End { reservation: ReservationId, in_doubt: bool },
    /// Cells, or other things, for itself alone.
    Claim(Vec<ClaimKey>),
    /// These given back.
    Release(Vec<ClaimKey>),
    /// To be told when somebody gives this back.
    Wait(ClaimKey),
    /// Limits that an endpoint is asked under from now on.
    Join { place: LimiterKey, limits: PerMinute },
    /// Not any more: the number that [`Ask::Join`] gave.
    Leave { place: LimiterKey, member: u64 },
    /// The turn of a request: the number of its ticket.
    Admit { place: LimiterKey, need: Need },
    /// A request that was admitted leaves.
    Sent(u64),
    /// What a request that was admitted used; `None` when it was not sent.
    Settle { ticket: u64, used: Option<u64> },
    /// What an endpoint says of its limits.
    Hear { place: LimiterKey, hint: RateLimitHint },
    /// For how long an endpoint still wants to be left alone, in milliseconds.
    RemainingPause(LimiterKey),
    /// Lines of an import; more follow.
    Lines(Bytes),
    /// These lines taken in.
    Import,
    /// How the owner is, as JSON.
    Status,
}

/// What the owner answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum OwnerSays {
    Done,
    Records(Vec<Option<Bytes>>),
    Page(Vec<(String, Bytes)>),
    Count(u64),
    Noted(ReserveOutcome),
    Claimed(Vec<bool>),
    Text(String),
    Failed(Trouble),
}

/// An error of the facts on its way.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Trouble {
    Journal(String),
    Index(String),
    Import(u64, String),
    Other(String),
}

impl Trouble {
    pub(super) fn of(error: &FactsError) -> Self {
        match error {
            FactsError::Journal { message, .. } => Self::Journal(message.clone()),
            FactsError::Index { message, .. } => Self::Index(message.clone()),
            FactsError::Import { line, message } => Self::Import(*line as u64, message.clone()),
            other => Self::Other(other.to_string()),
        }
    }

    /// The same error here.
    pub(super) fn into_error(self, dir: &Path) -> FactsError {
        match self {
            Self::Journal(message) => {
                FactsError::Journal { path: dir.join("journal.sqlite"), message }
            }
            Self::Index(message) => FactsError::Index { path: dir.join("index.sled"), message },
            Self::Import(line, message) => FactsError::Import { line: line as usize, message },
            Self::Other(message) => {
                FactsError::File { path: dir.to_owned(), error: io::Error::other(message) }
            }
        }
    }
}

/// A message as a frame.
pub(super) fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = bytes.len() - 4;
    if length > LONGEST {
        return Err(io::Error::other("more than a frame may hold"));
    }
    let mut bytes = bytes;
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(bytes)
}

/// How long the frame is that begins so.
pub(super) fn length(head: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(head) as usize;
    if length > LONGEST {
        return Err(io::Error::other("a frame that is too long"));
    }
    Ok(length)
}

/// The message of a frame.
pub(super) fn message<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    postcard::from_bytes(bytes).map_err(io::Error::other)
}

/// The greeting.
pub(super) fn greeting() -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(MAGIC);
    bytes[4..].copy_from_slice(&PROTOCOL.to_le_bytes());
    bytes
}

/// Reads one message; `None` at the end of the stream.
pub(super) fn read<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let length = length(head)?;
    let mut bytes = Vec::with_capacity(length.min(1 << 16));
    // As it comes: a length alone takes no memory.
    if stream.take(length as u64).read_to_end(&mut bytes)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    message(&bytes)
}

/// Writes one message.
pub(super) fn write(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    stream.write_all(&frame(message)?)
}

/// A session that the owner gives a borrower.
pub(super) fn session(holder: &str) -> FactsSession {
    FactsSession {
        id: super::sessions::new_id().into(),
        description: holder.into(),
        is_owner: false,
    }
}

//! The limits that an endpoint is asked under: of this process, or of all that
//! ask it through the owner of the cache.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::HeaderMap;

use super::borrow::Borrowed;
use super::wire::{Ask, Say};
use super::{Facts, FactsError, Hold};
use crate::limits::{Limiter, PerMinute, Word};

/// One limiter for each endpoint and key.
#[derive(Debug, Default)]
pub(super) struct Limiters(Mutex<HashMap<String, Arc<Limiter>>>);

impl Limiters {
    /// The limiter of an endpoint.
    pub(super) fn of(&self, endpoint: &str) -> Arc<Limiter> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Limiter::new(None, None));
        Arc::clone(all.entry(endpoint.to_owned()).or_insert_with(new))
    }
}

/// Admits requests to an endpoint, with others who ask it.
pub struct Throttle {
    way: Way,
    /// What [`Limiter::join`] gave.
    member: u64,
}

enum Way {
    Own(Arc<Limiter>),
    Lent(Arc<Borrowed>, String),
}

impl Throttle {
    /// A limiter that nobody shares.
    #[must_use]
    pub fn alone(limits: PerMinute) -> Self {
        let limiter = Arc::new(Limiter::new(None, None));
        let member = limiter.join(limits);
        Self { way: Way::Own(limiter), member }
    }

    /// Waits for the turn of a request of about so many tokens.
    pub async fn admit(&self, tokens: u64) {
        match &self.way {
            Way::Own(limiter) => limiter.admit(tokens).await,
            // Whose owner is gone notices when it notes what the request may cost.
            Way::Lent(owner, endpoint) => {
                let ask = Ask::Admit { endpoint: endpoint.clone(), tokens };
                let _ = owner.ask(&ask).await;
            }
        }
    }

    /// Settles a request: what it was admitted for, what it used.
    pub fn settle(&self, admitted: u64, used: u64) {
        match &self.way {
            Way::Own(limiter) => limiter.settle(admitted, used),
            Way::Lent(owner, endpoint) => {
                owner.tell(&Ask::Settle { endpoint: endpoint.clone(), admitted, used });
            }
        }
    }

    /// Nobody is admitted before `wait` has passed.
    pub fn pause(&self, wait: Duration) {
        self.hear(Word { wait: Some(wait), ..Word::default() });
    }

    /// Takes the endpoint's word.
    pub fn observe(&self, headers: &HeaderMap) {
        self.hear(Word::of(headers));
    }

    fn hear(&self, word: Word) {
        match &self.way {
            Way::Own(limiter) => limiter.hear(word),
            Way::Lent(owner, endpoint) if word != Word::default() => {
                owner.tell(&Ask::Hear { endpoint: endpoint.clone(), word });
            }
            Way::Lent(..) => {}
        }
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        match &self.way {
            Way::Own(limiter) => limiter.leave(self.member),
            Way::Lent(owner, endpoint) => {
                owner.tell(&Ask::Leave { endpoint: endpoint.clone(), member: self.member });
            }
        }
    }
}

impl Facts {
    /// The limits of an endpoint, shared by all who ask it with these facts; the
    /// strictest of theirs hold. `endpoint` tells the endpoint and its key apart
    /// from others, and shows neither.
    ///
    /// # Errors
    /// [`FactsError`] when the owner of the cache is gone.
    pub fn throttle(&self, endpoint: &str, limits: PerMinute) -> Result<Throttle, FactsError> {
        match &self.hold {
            Hold::Owned(owned) => {
                let limiter = owned.limiters.of(endpoint);
                let member = limiter.join(limits);
                Ok(Throttle { way: Way::Own(limiter), member })
            }
            Hold::Borrowed(owner) => {
                let endpoint = endpoint.to_owned();
                let said = owner.ask_here(&Ask::Join { endpoint: endpoint.clone(), limits })?;
                let Say::Count(member) = said else { return Err(owner.misunderstood()) };
                Ok(Throttle { way: Way::Lent(Arc::clone(owner), endpoint), member })
            }
        }
    }
}

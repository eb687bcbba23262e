//! The limits that an endpoint is asked under: of this process, or of all that
//! ask it through the owner of the cache.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::header::HeaderMap;

use super::borrow::Borrowed;
use super::wire::{Ask, Say};
use super::{Facts, FactsError, Hold};
use crate::limits::{Limiter, PerMinute, Word};

/// One limiter for each endpoint and key, and one for each of its models, as long
/// as somebody uses it.
#[derive(Debug, Clone, Default)]
pub(super) struct Limiters(Arc<Mutex<HashMap<String, Arc<Limiter>>>>);

impl Limiters {
    /// The limiter of this name, which somebody uses.
    pub(super) fn of(&self, name: &str) -> Option<Arc<Limiter>> {
        self.all().get(name).map(Arc::clone)
    }

    /// One more uses it: by the number that this gives.
    pub(super) fn join(&self, name: &str, limits: PerMinute) -> u64 {
        let mut all = self.all();
        all.retain(|_, limiter| !limiter.is_idle());
        all.entry(name.to_owned()).or_default().join(limits)
    }

    /// Who has this number uses it no more.
    pub(super) fn leave(&self, name: &str, member: u64) {
        let mut all = self.all();
        if let Some(limiter) = all.get(name) {
            limiter.leave(member);
        }
        all.retain(|_, limiter| !limiter.is_idle());
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Limiter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Admits requests to a model of an endpoint, with others who ask it.
pub struct Throttle {
    /// Under the limits of those who ask, whichever model.
    all: Member,
    /// Under those that the endpoint tells: it counts each model by itself.
    model: Member,
}

/// Somebody who uses a limiter.
struct Member {
    way: Way,
    /// The limiter.
    name: String,
    /// What [`Limiter::join`] gave.
    number: u64,
}

enum Way {
    Own(Limiters),
    Lent(Arc<Borrowed>),
}

impl Throttle {
    /// A limiter that nobody shares.
    #[must_use]
    pub fn alone(limits: PerMinute) -> Self {
        let limiters = Limiters::default();
        let all = Member::own(&limiters, "all".to_owned(), limits);
        Self { all, model: Member::own(&limiters, "model".to_owned(), PerMinute::default()) }
    }

    /// Waits for the turn of a request of about so many tokens.
    pub async fn admit(&self, tokens: u64) {
        self.model.admit(tokens).await;
        self.all.admit(tokens).await;
    }

    /// Settles a request: what it was admitted for, what it used.
    pub fn settle(&self, admitted: u64, used: u64) {
        self.model.settle(admitted, used);
        self.all.settle(admitted, used);
    }

    /// Nobody is admitted before `wait` has passed.
    pub fn pause(&self, wait: Duration) {
        self.all.hear(Word { wait: Some(wait), ..Word::default() });
    }

    /// Takes the endpoint's word: its limits are the model's, to wait is for all.
    pub fn observe(&self, headers: &HeaderMap) {
        let word = Word::of(headers);
        self.model.hear(Word { wait: None, ..word });
        self.all.hear(Word { limits: PerMinute::default(), ..word });
    }
}

impl Member {
    fn own(limiters: &Limiters, name: String, limits: PerMinute) -> Self {
        let number = limiters.join(&name, limits);
        Self { way: Way::Own(limiters.clone()), name, number }
    }

    fn lent(owner: &Arc<Borrowed>, name: String, limits: PerMinute) -> Result<Self, FactsError> {
        let Say::Count(number) = owner.ask_here(&Ask::Join { endpoint: name.clone(), limits })?
        else {
            return Err(owner.misunderstood());
        };
        Ok(Self { way: Way::Lent(Arc::clone(owner)), name, number })
    }

    async fn admit(&self, tokens: u64) {
        match &self.way {
            Way::Own(limiters) => {
                if let Some(limiter) = limiters.of(&self.name) {
                    limiter.admit(tokens).await;
                }
            }
            // Whose owner is gone notices when it notes what the request may cost.
            Way::Lent(owner) => {
                let ask = Ask::Admit { endpoint: self.name.clone(), tokens };
                let _ = owner.ask(&ask).await;
            }
        }
    }

    fn settle(&self, admitted: u64, used: u64) {
        match &self.way {
            Way::Own(limiters) => {
                limiters.of(&self.name).into_iter().for_each(|l| l.settle(admitted, used));
            }
            Way::Lent(owner) => {
                owner.tell(&Ask::Settle { endpoint: self.name.clone(), admitted, used });
            }
        }
    }

    fn hear(&self, word: Word) {
        if word == Word::default() {
            return;
        }
        match &self.way {
            Way::Own(limiters) => limiters.of(&self.name).into_iter().for_each(|l| l.hear(word)),
            Way::Lent(owner) => owner.tell(&Ask::Hear { endpoint: self.name.clone(), word }),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        match &self.way {
            Way::Own(limiters) => limiters.leave(&self.name, self.number),
            Way::Lent(owner) => {
                owner.tell(&Ask::Leave { endpoint: self.name.clone(), member: self.number });
            }
        }
    }
}

impl Facts {
    /// The limits of a model of an endpoint, shared by all who ask it with these
    /// facts; the strictest of theirs hold for all models of the endpoint, and what
    /// it tells itself for this one. `endpoint` tells the endpoint and its key apart
    /// from others, and shows neither.
    ///
    /// # Errors
    /// [`FactsError`] when the owner of the cache is gone.
    pub fn throttle(
        &self,
        endpoint: &str,
        model: &str,
        limits: PerMinute,
    ) -> Result<Throttle, FactsError> {
        let join = |name: String, limits| match &self.hold {
            Hold::Owned(owned) => Ok(Member::own(&owned.limiters, name, limits)),
            Hold::Borrowed(owner) => Member::lent(owner, name, limits),
        };
        Ok(Throttle {
            all: join(endpoint.to_owned(), limits)?,
            model: join(format!("{endpoint} {model}"), PerMinute::default())?,
        })
    }
}

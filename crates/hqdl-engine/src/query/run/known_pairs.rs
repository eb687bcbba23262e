//! Pairs of a join that earlier answers cover. A question about a left value shows a list of
//! candidates, and the list is part of the column's identity. So the facts about a left value state
//! which of its pairs are known, whatever the lists were.

use std::borrow::Cow;

use foldhash::{HashMap, HashSet};

use crate::query::cells::targets::Counts;
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use crate::query::route::calls::JoinCall;
use hqdl_facts::{CellLookup, ExpansionRequirements, Record};
use hqdl_spec::{Column, Expansion, Reuse, Task, Type, ValueList};
use hqdl_values::cell::{Answer, CellValue, State};
use hqdl_values::key::{ColumnIdentity, Entity, ListHash, PARTNERS_COLUMN};
use hqdl_values::value::Value;

/// A join, with the lists of candidates that it has asked about, in this query or earlier.
#[derive(Debug)]
pub struct AskedLists {
    /// Index of the join in the query.
    pub number: usize,
    pub join: JoinCall,
    lists: HashMap<u32, AskedList>,
    /// Hashes of the lists in identities without candidates, which earlier versions stored.
    hashes: HashSet<String>,
    /// Ids of the column identities that have been read.
    read_ids: HashSet<u32>,
    /// Facts that have been counted as reused.
    counted: HashSet<(Entity, u32)>,
}

/// A list of candidates that a join has asked about.
#[derive(Debug)]
struct AskedList {
    candidates: Vec<String>,
    /// Requirements for the facts about this list; `None` until a record contains such a fact.
    requirements: Option<ExpansionRequirements>,
}

/// Pairs of a left value that its facts answer.
#[derive(Default)]
pub struct KnownPairs {
    /// For each candidate, whether it is a partner, and the id of the identity of the answer.
    partners: HashMap<String, (bool, u32)>,
    /// Answers by the id of their identity.
    answers: HashMap<u32, Answer>,
    /// Ids of the identities of lists whose reply had no readable answer.
    unanswered: Vec<u32>,
}

impl AskedLists {
    /// Creates the state of a join before its lists are read.
    #[must_use]
    pub fn new(number: usize, join: &JoinCall) -> Self {
        let (lists, hashes) = (HashMap::default(), HashSet::default());
        let (read_ids, counted) = (HashSet::default(), HashSet::default());
        Self { number, join: join.clone(), lists, hashes, read_ids, counted }
    }

    /// Reads the lists that have been added since the last call.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the facts cannot be read.
    pub fn update(&mut self, request: &Request<'_>) -> Result<(), QueryError> {
        let history = request.facts.history();
        let ids = history.list_column_identity_ids(PARTNERS_COLUMN)?;
        let new_ids: HashSet<u32> =
            ids.into_iter().filter(|id| !self.read_ids.contains(id)).collect();
        if new_ids.is_empty() {
            return Ok(());
        }
        for (id, text) in history.list_column_identities()? {
            if new_ids.contains(&id)
                && let Ok(identity) = serde_json::from_str(&text)
            {
                self.add_list(id, identity);
            }
        }
        self.read_ids.extend(new_ids);
        Ok(())
    }

    /// Adds a list if its identity belongs to the join.
    fn add_list(&mut self, id: u32, identity: ColumnIdentity) {
        if identity.candidates.is_empty() {
            let hash = identity.about.rsplit(' ').next().unwrap_or_default();
            let hash = ListHash::from_text(hash.to_owned());
            let earlier = build_earlier_identity(&self.join, &hash);
            if earlier.fingerprint() == identity.fingerprint() {
                self.hashes.insert(hash.as_str().to_owned());
            }
        } else {
            let own = build_join_identity(&self.join, identity.candidates.clone());
            if own.fingerprint() == identity.fingerprint() {
                let list = AskedList { candidates: identity.candidates, requirements: None };
                self.lists.insert(id, list);
            }
        }
    }

    /// Returns the pairs that the facts about a left value answer. If several facts answer a pair,
    /// the latest one with an answer counts. See also [`Self::add_unanswered_lists`].
    ///
    /// # Errors
    /// Returns [`QueryError`] if the facts cannot be read.
    pub fn find_known_pairs(
        &mut self,
        record: &Record,
        request: &Request<'_>,
    ) -> Result<KnownPairs, QueryError> {
        let mut known = KnownPairs::default();
        let mut found = Vec::new();
        for identity_id in record.facts.iter().map(|fact| fact.identity_id) {
            let Some(list) = self.lists.get_mut(&identity_id) else { continue };
            if known.answers.contains_key(&identity_id) {
                continue;
            }
            let requirements = match &mut list.requirements {
                Some(requirements) => requirements,
                none => {
                    let expansion = build_join_expansion(&self.join, list.candidates.clone());
                    none.insert(build_requirements(&expansion, request)?)
                }
            };
            if let CellLookup::Known(fact) = requirements.look_up_cell(Some(record), 0) {
                if fact.answer.state.has_value() || fact.answer.state == State::Unknown {
                    found.push((fact.completion, identity_id));
                } else {
                    known.unanswered.push(identity_id);
                }
                known.answers.insert(identity_id, fact.answer.clone());
            }
        }
        found.sort_unstable();
        for (_, identity_id) in found {
            known.add_answer(identity_id, &self.lists[&identity_id].candidates);
        }
        Ok(known)
    }

    /// Adds the pairs of those of `lists` whose reply had no readable answer, as no match. Such a
    /// reply does not count for other lists.
    pub fn add_unanswered_lists(&self, lists: &[Vec<String>], known: &mut KnownPairs) {
        for identity_id in std::mem::take(&mut known.unanswered) {
            let candidates = &self.lists[&identity_id].candidates;
            if lists.contains(candidates) {
                known.add_answer(identity_id, candidates);
            }
        }
    }

    /// Adds a list that this query asks about, so that [`Self::update`] need not read it.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the identity cannot be stored.
    pub fn add_asked_list(
        &mut self,
        list: &[String],
        request: &Request<'_>,
    ) -> Result<(), QueryError> {
        let identity = build_join_identity(&self.join, list.to_vec());
        let id = request.facts.history().intern_column_identity(&identity)?;
        if self.read_ids.insert(id) {
            self.lists.insert(id, AskedList { candidates: list.to_vec(), requirements: None });
        }
        Ok(())
    }

    /// Adds the answer about exactly this list that an earlier version stored, if there is one. It
    /// does not replace known pairs.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the facts cannot be read.
    pub fn add_earlier_answer(
        &self,
        record: &Record,
        list: &[String],
        request: &Request<'_>,
        known: &mut KnownPairs,
    ) -> Result<(), QueryError> {
        let hash = ListHash::new(list);
        if !self.hashes.contains(hash.as_str()) {
            return Ok(());
        }
        let mut expansion = build_join_expansion(&self.join, list.to_vec());
        expansion.columns[0].other_identities = vec![build_earlier_identity(&self.join, &hash)];
        let requirements = build_requirements(&expansion, request)?;
        if let CellLookup::Known(fact) = requirements.look_up_cell(Some(record), 0) {
            let partners = list_partners(&fact.answer);
            for candidate in list {
                let pair = (partners.contains(candidate), fact.identity_id);
                known.partners.entry(candidate.clone()).or_insert(pair);
            }
            known.answers.insert(fact.identity_id, fact.answer.clone());
        }
        Ok(())
    }

    /// Returns true if the join has asked about a list whose answers can be read for single pairs.
    #[must_use]
    pub fn has_lists(&self) -> bool {
        !self.lists.is_empty()
    }

    /// Returns true if there are lists of earlier versions.
    #[must_use]
    pub fn has_earlier_lists(&self) -> bool {
        !self.hashes.is_empty()
    }

    /// Counts the facts with these identities as reused, each once per query.
    pub fn count_reused(
        &mut self,
        entity: &Entity,
        known: &KnownPairs,
        identity_ids: impl IntoIterator<Item = u32>,
        counts: &mut Counts,
    ) {
        for identity_id in identity_ids {
            if self.counted.insert((entity.clone(), identity_id)) {
                counts.reused += 1;
                counts.count_answer(&known.answers[&identity_id]);
            }
        }
    }
}

impl KnownPairs {
    /// Adds the pairs of an answer. They replace known pairs.
    fn add_answer(&mut self, identity_id: u32, candidates: &[String]) {
        let partners = list_partners(&self.answers[&identity_id]);
        let pairs = candidates.iter().map(|c| (c.clone(), (partners.contains(c), identity_id)));
        self.partners.extend(pairs);
    }

    /// Returns whether a candidate is a partner, and the id of the identity of the answer; `None` if
    /// the pair is not known.
    #[must_use]
    pub fn get(&self, candidate: &str) -> Option<(bool, u32)> {
        self.partners.get(candidate).copied()
    }
}

/// Returns the candidates that an answer names.
fn list_partners(answer: &Answer) -> HashSet<String> {
    match &answer.value {
        CellValue::Many(values) => values.iter().map(format_candidate).collect(),
        _ => HashSet::default(),
    }
}

/// Builds the requirements for the facts about a list.
pub(in crate::query) fn build_requirements(
    expansion: &Expansion,
    request: &Request<'_>,
) -> Result<ExpansionRequirements, QueryError> {
    let models = request.choose_models(expansion);
    let mut requirements = models.build_requirements(request.facts.history(), expansion)?;
    if let Some(refresh) = request.refresh {
        refresh.mark_values_missing(&mut requirements, 1);
    }
    Ok(requirements)
}

/// Returns a name of the join. The answers of joins with the same name count for each other: they ask
/// the same question, and the same model unless the answers of any model count.
pub(in crate::query) fn build_join_name(join: &JoinCall, request: &Request<'_>) -> String {
    let models = request.choose_models(&build_join_expansion(join, Vec::new()));
    let choice = models.into_only_model();
    let model = if choice.reuse == Reuse::AnyModel { "" } else { &choice.name };
    format!("join {} {model}", build_join_identity(join, Vec::new()).fingerprint())
}

/// Returns the identity that earlier versions used for a list: with the list's hash instead of its
/// candidates.
fn build_earlier_identity(join: &JoinCall, hash: &ListHash) -> ColumnIdentity {
    let about = format!("{} {}", join.criterion, hash.as_str());
    ColumnIdentity { about, ..build_join_identity(join, Vec::new()) }
}

/// Returns the text of a candidate. Values of the same entity (`Oslo` and `Oslo `) count as one
/// candidate.
pub(in crate::query) fn format_candidate(value: &Value) -> String {
    value.canonical_text().unwrap_or(Cow::Borrowed("NULL")).into_owned()
}

/// Returns the expansion for one list of a join.
pub(in crate::query) fn build_join_expansion(join: &JoinCall, list: Vec<String>) -> Expansion {
    let identity = build_join_identity(join, list.clone());
    let values = ValueList { hash: ListHash::new(&list), values: list, open: false };
    let criterion = join.criterion.as_str();
    Expansion {
        about: format!(
            "for each {}, the values of the list with this: {criterion}",
            join.left_name
        ),
        task: Task::Join,
        model: join.model.clone(),
        columns: vec![Column::new_ad_hoc(Type::Text, criterion.to_owned(), Some(values), identity)],
        ..Expansion::new_ad_hoc("join", vec![join.left_name.clone()])
    }
}

/// Returns the identity of a join's facts about one list. It includes the list, because the answer
/// states nothing about other candidates.
pub(in crate::query) fn build_join_identity(
    join: &JoinCall,
    candidates: Vec<String>,
) -> ColumnIdentity {
    ColumnIdentity {
        key: vec![join.left_name.clone()],
        column: PARTNERS_COLUMN.to_owned(),
        kind: Type::Text.name().to_owned(),
        about: join.criterion.clone(),
        many: true,
        list: "closed".to_owned(),
        kinds: Vec::new(),
        requires_evidence: false,
        candidates,
    }
}

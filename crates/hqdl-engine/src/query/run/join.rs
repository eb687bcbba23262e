//! Joins whose matches the model decides: finds the partners of each left value among the right
//! values. Each left value is sent with the list of its candidates that no earlier answer covers, in
//! as many requests as necessary. If the query sets `narrow=N`, the model sees only the N most
//! similar values, and a note reports how many values the list had.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use rusqlite::types::Value as Sql;
use serde_json::Value as Json;

use crate::query::ask::QueryRun;
use crate::query::cells::targets::{Cell, Counts, Demand, TargetExpansion};
use crate::query::functions::call_runtime::{JoinLookup, JoinPairs, SharedRuntime, lock_runtime};
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use crate::query::route::calls::JoinCall;
use crate::query::run::known_pairs::{
    AskedLists, KnownPairs, build_join_expansion, build_join_name, build_requirements,
    format_candidate,
};
use hqdl_facts::{ClaimKey, Record};
use hqdl_model::generate::{StopReason, wait_for_stop};
use hqdl_values::Row;
use hqdl_values::key::{Entity, KeyColumns};
use hqdl_values::value::Value;

/// Lists with at most this many values are never split, regardless of their size in bytes.
const MAX_UNSPLIT: usize = 200;
/// Maximum number of values in a request for a longer list, and maximum size of these values in
/// bytes. Endpoints reject larger response schemas.
const MAX_LIST: (usize, usize) = (999, 14_999);
/// Number of left values whose facts are read at once, and approximate number that are claimed at
/// once.
const CHUNK: usize = 1000;

/// Questions about the demanded pairs of a join.
#[derive(Default)]
pub(in crate::query) struct JoinQuestions {
    /// Left values to ask about, by the list of candidates that the model sees.
    pub by_list: BTreeMap<Vec<String>, Vec<JoinLookup>>,
    /// Number of demanded pairs that no earlier answer covers.
    pub unknown_count: u64,
    /// Pairs that need no question: known pairs, and pairs that `narrow` excludes. For each left
    /// value, the right values and whether they match.
    decided: Vec<(Vec<u8>, DecidedPairs)>,
}

/// Canonical bytes of right values, and whether they match.
type DecidedPairs = Vec<(Vec<u8>, bool)>;

impl JoinQuestions {
    /// Returns the questions about those of a join's demanded pairs that are not known.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the facts cannot be read.
    pub fn collect(
        asked_lists: &mut AskedLists,
        lookups: Vec<JoinLookup>,
        runtime: &SharedRuntime,
        request: &Request<'_>,
        counts: &mut Counts,
    ) -> Result<Self, QueryError> {
        let number = asked_lists.number;
        let mut collector = QuestionCollector {
            request,
            counts,
            asked_lists,
            narrowed_from: 0,
            questions: Self::default(),
        };
        let result = collector.add_lookups(lookups);
        let pairs = &mut lock_runtime(runtime).data.joins[number];
        pairs.narrowed_from = pairs.narrowed_from.max(collector.narrowed_from);
        result.map(|()| collector.questions)
    }

    /// Like [`Self::collect`], and stores the pairs that need no question in the query's state.
    /// Also returns their number.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the facts cannot be read.
    pub fn answer_known_pairs(
        asked_lists: &mut AskedLists,
        lookups: Vec<JoinLookup>,
        runtime: &SharedRuntime,
        request: &Request<'_>,
    ) -> Result<(Self, usize), QueryError> {
        let mut counts = Counts::default();
        let mut questions = Self::collect(asked_lists, lookups, runtime, request, &mut counts)?;
        let mut runtime = lock_runtime(runtime);
        runtime.data.counts.add(&counts);
        let pairs = &mut runtime.data.joins[asked_lists.number];
        let mut decided = 0;
        for (left, rights) in std::mem::take(&mut questions.decided) {
            decided += rights.len();
            pairs.answers.entry(left).or_default().extend(rights);
        }
        Ok((questions, decided))
    }
}

/// Stores the answers of pairs that a pass has only looked up, if facts contain them. Returns their
/// number. Unlike for demanded pairs, the list of candidates decides nothing here.
///
/// # Errors
/// Returns [`QueryError`] if the facts cannot be read.
pub fn answer_looked_up_pairs(
    asked_lists: &mut AskedLists,
    lookups: Vec<JoinLookup>,
    runtime: &SharedRuntime,
    request: &Request<'_>,
) -> Result<usize, QueryError> {
    let (mut counts, mut answered) = (Counts::default(), 0);
    let facts = request.facts.sync();
    for chunk in group_by_entity(&asked_lists.join, lookups).chunks(CHUNK) {
        let entities: Vec<&Entity> = chunk.iter().map(|left| &left.entity).collect();
        for (left, record) in chunk.iter().zip(facts.get_records(&entities)?) {
            let known = asked_lists.find_known_pairs(&record.unwrap_or_default(), request)?;
            let mut used = BTreeSet::new();
            let answers = &mut lock_runtime(runtime).data.joins[asked_lists.number].answers;
            for (canonical_bytes, candidates) in &left.spellings {
                for (text, (_, right)) in candidates {
                    let Some((matches, identity_id)) = known.get(text) else { continue };
                    used.insert(identity_id);
                    answered += 1;
                    answers
                        .entry(canonical_bytes.clone())
                        .or_default()
                        .insert(right.clone(), matches);
                }
            }
            asked_lists.count_reused(&left.entity, &known, used, &mut counts);
        }
    }
    lock_runtime(runtime).data.counts.add(&counts);
    Ok(answered)
}

/// A demanded left value. Several spellings can denote one entity (`Oslo` and `Oslo `).
struct LeftValue {
    value: Value,
    entity: Entity,
    /// Canonical bytes of each spelling, with its candidates and their texts.
    spellings: Vec<(Vec<u8>, JoinCandidates)>,
}

/// Texts of right values, with the values and their canonical bytes.
type JoinCandidates = Vec<(String, (Value, Vec<u8>))>;

/// Collects the questions about demanded pairs.
struct QuestionCollector<'c, 'r> {
    request: &'c Request<'r>,
    counts: &'c mut Counts,
    asked_lists: &'c mut AskedLists,
    narrowed_from: usize,
    questions: JoinQuestions,
}

impl QuestionCollector<'_, '_> {
    fn add_lookups(&mut self, lookups: Vec<JoinLookup>) -> Result<(), QueryError> {
        let facts = self.request.facts.sync();
        self.asked_lists.update(self.request)?;
        let left_values = group_by_entity(&self.asked_lists.join, lookups);
        for chunk in left_values.chunks(CHUNK) {
            let entities: Vec<&Entity> = chunk.iter().map(|left| &left.entity).collect();
            for (left, record) in chunk.iter().zip(facts.get_records(&entities)?) {
                self.add_left_value(left, &record.unwrap_or_default())?;
            }
        }
        Ok(())
    }

    fn add_left_value(&mut self, left: &LeftValue, record: &Record) -> Result<(), QueryError> {
        let candidates = left.spellings.iter().flat_map(|(_, candidates)| candidates);
        let texts: BTreeSet<&String> = candidates.map(|(text, _)| text).collect();
        let mut shown: Vec<String> = texts.into_iter().cloned().collect();
        if let Some(narrow) = self.asked_lists.join.narrow.filter(|n| *n < shown.len()) {
            self.narrowed_from = self.narrowed_from.max(shown.len());
            shown = select_most_similar(&left.value.to_string(), shown, narrow);
        }
        let limits = &self.request.spec.limits;
        let max_bytes = usize::try_from(limits.context_tokens).unwrap_or(usize::MAX);
        let mut known = self.asked_lists.find_known_pairs(record, self.request)?;
        if self.asked_lists.has_earlier_lists() {
            for list in split_list(shown.clone(), max_bytes) {
                self.asked_lists.add_earlier_answer(record, &list, self.request, &mut known)?;
            }
        }
        shown.retain(|text| known.get(text).is_none());
        let lists = split_list(shown.clone(), max_bytes);
        self.asked_lists.add_unanswered_lists(&lists, &mut known);
        shown.retain(|text| known.get(text).is_none());
        self.add_decided_pairs(left, &shown, &known);
        for list in split_list(shown, max_bytes) {
            for (canonical_bytes, candidates) in &left.spellings {
                let is_listed = |text: &String| list.binary_search(text).is_ok();
                let listed = candidates.iter().filter(|(text, _)| is_listed(text));
                let rights: Vec<_> = listed.map(|(_, right)| right.clone()).collect();
                if !rights.is_empty() {
                    let lookup = (left.value.clone(), canonical_bytes.clone(), rights);
                    self.questions.by_list.entry(list.clone()).or_default().push(lookup);
                }
            }
        }
        Ok(())
    }

    /// Adds the pairs of a left value that need no question, where `asked` are the candidates that
    /// need one.
    fn add_decided_pairs(&mut self, left: &LeftValue, asked: &[String], known: &KnownPairs) {
        let mut used = BTreeSet::new();
        for (canonical_bytes, candidates) in &left.spellings {
            let mut decided = Vec::new();
            for (text, (_, right)) in candidates {
                let pair = known.get(text);
                self.questions.unknown_count += u64::from(pair.is_none());
                used.extend(pair.map(|(_, identity_id)| identity_id));
                if asked.binary_search(text).is_err() {
                    // A pair that `narrow` excludes is no match.
                    decided.push((right.clone(), pair.is_some_and(|(matches, _)| matches)));
                }
            }
            self.questions.decided.push((canonical_bytes.clone(), decided));
        }
        self.asked_lists.count_reused(&left.entity, known, used, self.counts);
    }
}

/// Groups the demanded left values by entity, so that no pair is in two lists.
fn group_by_entity(join: &JoinCall, lookups: Vec<JoinLookup>) -> Vec<LeftValue> {
    let key = KeyColumns::new(vec![join.left_name.clone()]);
    let mut positions: HashMap<Entity, usize> = HashMap::new();
    let mut left_values: Vec<LeftValue> = Vec::new();
    for (value, canonical_bytes, rights) in lookups {
        let entity = key.build_entity(std::slice::from_ref(&value));
        let candidates = rights.into_iter().map(|right| (format_candidate(&right.0), right));
        let spelling = (canonical_bytes, candidates.collect());
        let position = *positions.entry(entity.clone()).or_insert(left_values.len());
        match left_values.get_mut(position) {
            Some(left) => left.spellings.push(spelling),
            None => left_values.push(LeftValue { value, entity, spellings: vec![spelling] }),
        }
    }
    left_values
}

/// Asks about the unknown pairs of a join. Returns the number of values asked for.
///
/// # Errors
/// Returns [`QueryError`] if an error stops the run.
pub fn ask_about_pairs(
    asked_lists: &mut AskedLists,
    runtime: &SharedRuntime,
    questions: JoinQuestions,
    query_run: &QueryRun<'_>,
    request: &Request<'_>,
) -> Result<u64, QueryError> {
    let mut asker = PairAsker::new(asked_lists, runtime, query_run, request);
    let mut by_list = questions.by_list;
    loop {
        for chunk in group_into_chunks(by_list.into_values(), asker.chunk_size) {
            asker.ask_unless_claimed(chunk)?;
        }
        let Some(key) = asker.awaited.take() else { break };
        asker.wait_for_release(&key)?;
        let postponed = std::mem::take(&mut asker.postponed);
        let asked_lists = &mut *asker.asked_lists;
        let (questions, _) =
            JoinQuestions::answer_known_pairs(asked_lists, postponed, runtime, request)?;
        by_list = questions.by_list;
    }
    let mut runtime = lock_runtime(runtime);
    runtime.data.counts.add(&asker.counts);
    Ok(asker.counts.asked)
}

/// Asks about pairs that no other run is asking about. A run claims a left value before it asks, for
/// all lists, because two runs may have different lists with the same candidate.
struct PairAsker<'p, 'r> {
    asked_lists: &'p mut AskedLists,
    runtime: &'p SharedRuntime,
    query_run: &'p QueryRun<'r>,
    request: &'p Request<'r>,
    /// Maximum number of left values that are claimed at once: a multiple of the values per request.
    chunk_size: usize,
    /// Start of the names of the claims.
    claim_prefix: String,
    /// Left values that other runs ask about.
    postponed: Vec<JoinLookup>,
    /// Claim of one of them.
    awaited: Option<ClaimKey>,
    counts: Counts,
}

impl<'p, 'r> PairAsker<'p, 'r> {
    fn new(
        asked_lists: &'p mut AskedLists,
        runtime: &'p SharedRuntime,
        query_run: &'p QueryRun<'r>,
        request: &'p Request<'r>,
    ) -> Self {
        let join = &asked_lists.join;
        let models = request.choose_models(&build_join_expansion(join, Vec::new()));
        let rows = (models.choices()[0].rows as usize).max(1);
        let claim_prefix = build_join_name(join, request);
        Self {
            asked_lists,
            runtime,
            query_run,
            request,
            chunk_size: (CHUNK / rows).max(1) * rows,
            claim_prefix,
            postponed: Vec::new(),
            awaited: None,
            counts: Counts::default(),
        }
    }

    /// Asks about left values, except those that another run has claimed.
    fn ask_unless_claimed(&mut self, lookups: Vec<JoinLookup>) -> Result<(), QueryError> {
        let key = KeyColumns::new(vec![self.asked_lists.join.left_name.clone()]);
        let claim_key = |(left, ..): &JoinLookup| {
            let entity = key.build_entity(std::slice::from_ref(left));
            ClaimKey::Name(format!("{} {}", self.claim_prefix, entity.as_str()))
        };
        let keys: HashSet<ClaimKey> = lookups.iter().map(claim_key).collect();
        let keys: Vec<ClaimKey> = keys.into_iter().collect();
        let facts = self.request.facts;
        let claim = self.query_run.runtime.block_on(facts.claim_keys(keys.clone()))?;
        let claimed = keys.iter().zip(claim.granted()).filter(|(_, granted)| **granted);
        let claimed: HashSet<&ClaimKey> = claimed.map(|(key, _)| key).collect();
        let (own, others): (Vec<JoinLookup>, Vec<JoinLookup>) =
            lookups.into_iter().partition(|lookup| claimed.contains(&claim_key(lookup)));
        if let Some(other) = others.first() {
            self.awaited.get_or_insert_with(|| claim_key(other));
        }
        // Another run may have stored answers since the facts were read.
        let asked_lists = &mut *self.asked_lists;
        let (questions, _) =
            JoinQuestions::answer_known_pairs(asked_lists, own, self.runtime, self.request)?;
        self.postponed.extend(others);
        self.ask_about_lists(questions.by_list)
    }

    /// Sends the questions about all lists side by side.
    fn ask_about_lists(
        &mut self,
        by_list: BTreeMap<Vec<String>, Vec<JoinLookup>>,
    ) -> Result<(), QueryError> {
        let (request, counts) = (self.request, &mut self.counts);
        let (mut targets, mut demands, mut asked) = (Vec::new(), Vec::new(), Vec::new());
        for (list, lookups) in by_list {
            self.asked_lists.add_asked_list(&list, request)?;
            let (target, join) = (targets.len(), &self.asked_lists.join);
            let partners = PartnerQuestions::new(target, join, list, &lookups, request, counts)?;
            targets.push(partners.target);
            demands.extend(partners.demands);
            asked.push(lookups.into_iter().zip(partners.entities));
        }
        if !demands.is_empty() {
            self.query_run.send_demands(&mut targets, demands, counts)?;
        }
        let mut runtime = lock_runtime(self.runtime);
        let pairs = &mut runtime.data.joins[self.asked_lists.number];
        for (target, lookups) in targets.iter_mut().zip(asked) {
            for ((_, canonical_bytes, rights), entity) in lookups {
                let (facts, counts) = (request.facts.sync(), &mut Counts::default());
                let cell = target.look_up_cell(entity, 0, facts, None, counts)?;
                store_pairs(pairs, canonical_bytes, rights, cell);
            }
        }
        Ok(())
    }

    /// Waits until no run holds a claim.
    fn wait_for_release(&self, key: &ClaimKey) -> Result<(), QueryError> {
        self.query_run.runtime.block_on(async {
            tokio::select! {
                released = self.request.facts.wait_for_release(key) => {
                    released.map_err(QueryError::from)
                }
                () = wait_for_stop(&self.request.interrupt) => {
                    Err(QueryError::from(StopReason::Interrupted))
                }
            }
        })
    }
}

/// Questions about the left values that share a list.
pub(in crate::query) struct PartnerQuestions {
    /// Expansion that asks the questions.
    pub target: TargetExpansion,
    /// Entity index of each left value.
    entities: Vec<usize>,
    /// Cells that are not known yet.
    pub demands: Vec<Demand>,
}

impl PartnerQuestions {
    /// Builds the questions; `target` is the index of their expansion among those of the demands.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the facts cannot be read.
    pub fn new(
        target: usize,
        join: &JoinCall,
        list: Vec<String>,
        lookups: &[JoinLookup],
        request: &Request<'_>,
        counts: &mut Counts,
    ) -> Result<Self, QueryError> {
        let expansion = Arc::new(build_join_expansion(join, list));
        let requirements = build_requirements(&expansion, request)?;
        let mut asked = TargetExpansion::new(expansion, Arc::new(requirements), None);
        let mut entities = Vec::new();
        let mut demands = Vec::new();
        for (left, canonical_bytes, _) in lookups {
            let row = || Row { key: vec![left.clone()], context: Vec::new() };
            let entity = asked.intern_entity(canonical_bytes, row);
            let facts = request.facts.sync();
            if *asked.look_up_cell(entity, 0, facts, None, counts)? == Cell::Missing {
                demands.push(Demand::new(target, entity, 0));
            }
            entities.push(entity);
        }
        demands.sort_by_key(|d| d.entity());
        demands.dedup();
        Ok(Self { target: asked, entities, demands })
    }
}

/// Groups the left values of all lists into chunks. The left values of a list are split only after
/// `max_size` values, so that no request becomes smaller.
fn group_into_chunks(
    by_list: impl Iterator<Item = Vec<JoinLookup>>,
    max_size: usize,
) -> Vec<Vec<JoinLookup>> {
    let mut chunks: Vec<Vec<JoinLookup>> = Vec::new();
    for mut lookups in by_list {
        while !lookups.is_empty() {
            let rest = lookups.split_off(lookups.len().min(max_size));
            match chunks.last_mut() {
                Some(chunk) if chunk.len() + lookups.len() <= max_size => chunk.extend(lookups),
                _ => chunks.push(lookups),
            }
            lookups = rest;
        }
    }
    chunks
}

/// Stores the pairs that an answer confirms or excludes.
fn store_pairs(pairs: &mut JoinPairs, left: Vec<u8>, rights: Vec<(Value, Vec<u8>)>, cell: &Cell) {
    let partners: Vec<String> = match cell {
        Cell::Known(Sql::Text(json)) => serde_json::from_str::<Vec<Json>>(json)
            .unwrap_or_default()
            .iter()
            .map(|v| format_candidate(&Value::from_json(v)))
            .collect(),
        _ => Vec::new(),
    };
    let known = pairs.answers.entry(left).or_default();
    for (right, canonical_bytes) in rights {
        let partner = partners.contains(&format_candidate(&right));
        known.insert(canonical_bytes, partner);
    }
}

/// Splits a list into parts that fit into a request.
fn split_list(texts: Vec<String>, max_bytes: usize) -> Vec<Vec<String>> {
    if texts.len() <= MAX_UNSPLIT {
        return vec![texts];
    }
    let mut lists: Vec<Vec<String>> = Vec::new();
    let mut bytes = 0;
    for text in texts {
        bytes += text.len();
        match lists.last_mut() {
            Some(list) if list.len() < MAX_LIST.0 && bytes <= MAX_LIST.1.min(max_bytes) => {
                list.push(text);
            }
            _ => {
                bytes = text.len();
                lists.push(vec![text]);
            }
        }
    }
    lists
}

/// Returns the `max_values` values that are most similar to a text.
fn select_most_similar(text: &str, mut list: Vec<String>, max_values: usize) -> Vec<String> {
    let lower = text.to_lowercase();
    let similarity = |other: &String| {
        let other = other.to_lowercase();
        let containment = f64::from(u8::from(other.contains(&lower) || lower.contains(&other)));
        strsim::sorensen_dice(&lower, &other) + strsim::jaro_winkler(&lower, &other) + containment
    };
    list.sort_by(|a, b| similarity(b).total_cmp(&similarity(a)));
    list.truncate(max_values);
    list.sort_unstable();
    list
}

#[cfg(test)]
mod tests {
    use super::{JoinLookup, group_into_chunks};
    use hqdl_values::value::Value;

    /// Returns the left values of each chunk, where each list has this number of left values.
    fn chunk_numbers(list_sizes: &[i64], max_size: usize) -> Vec<Vec<i64>> {
        let mut next = 0..;
        let mut list = |size: &i64| -> Vec<JoinLookup> {
            let values = next.by_ref().take(*size as usize);
            values.map(|n| (Value::Integer(n), Vec::new(), Vec::new())).collect()
        };
        let lists: Vec<_> = list_sizes.iter().map(&mut list).collect();
        let number = |lookup: JoinLookup| match lookup.0 {
            Value::Integer(n) => n,
            other => panic!("{other:?}"),
        };
        let chunks = group_into_chunks(lists.into_iter(), max_size).into_iter();
        chunks.map(|chunk| chunk.into_iter().map(number).collect()).collect()
    }

    #[test]
    fn short_lists_share_a_chunk() {
        assert_eq!(chunk_numbers(&[2, 1, 2], 3), [vec![0, 1, 2], vec![3, 4]]);
        // A list that does not fit begins a new chunk.
        assert_eq!(chunk_numbers(&[2, 2], 3), [vec![0, 1], vec![2, 3]]);
        assert_eq!(chunk_numbers(&[0, 0], 3), Vec::<Vec<i64>>::new());
    }

    #[test]
    fn a_list_longer_than_a_chunk_is_split() {
        let chunks = [vec![0], vec![1, 2, 3], vec![4, 5, 6], vec![7, 8]];
        assert_eq!(chunk_numbers(&[1, 7, 1], 3), chunks);
    }
}

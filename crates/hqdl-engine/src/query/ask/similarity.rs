//! Similarity of texts to a question: by embeddings if the spec names an embeddings model and its
//! endpoint works, otherwise by words.

use std::sync::PoisonError;

use crate::query::ask::QueryRun;
use crate::query::ask::embeddings::{EmbeddingNeed, EmbeddingsSource, NoEmbeddings};
use crate::query::request::error::QueryError;
use crate::retrieval::text_index::TextIndex;
use crate::retrieval::vectors::{PassageDigest, cosine_similarity, hash_passage};

/// Returns the similarity of each passage to a question, based on words only.
pub(in crate::query) fn compute_word_similarities(question: &str, passages: &[&str]) -> Vec<f64> {
    // If the comparison fails, all passages count as equally similar.
    let similarities = TextIndex::from_texts(passages.iter().copied())
        .and_then(|w| w.compute_similarities(question));
    similarities.unwrap_or_else(|_| vec![0.0; passages.len()])
}

impl QueryRun<'_> {
    /// Returns the similarity of each passage to a question. If the endpoint fails, compares the
    /// passages by words.
    ///
    /// # Errors
    /// Returns [`QueryError`] if an error stops the run.
    pub(in crate::query) fn compute_question_similarities(
        &self,
        question: &str,
        passages: &[&str],
    ) -> Result<Vec<f64>, QueryError> {
        let mut source = self.embeddings.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(settings) = &self.request.spec.embeddings else {
            return Ok(compute_word_similarities(question, passages));
        };
        if source.failure.is_some() {
            return Ok(compute_word_similarities(question, passages));
        }
        let model = settings.model.name.as_str();
        let why = match self.compute_embedding_similarities(&mut source, model, question, passages)
        {
            Ok(found) => return Ok(found),
            Err(NoEmbeddings::QueryFailed(error)) => return Err(error),
            Err(NoEmbeddings::Unusable(error)) => error.to_string(),
            Err(NoEmbeddings::Request(error)) => error.to_string(),
        };
        source.failure = Some(why);
        Ok(compute_word_similarities(question, passages))
    }

    /// Returns notes about missing embeddings: texts that were compared by words although the spec
    /// names a model, and texts that the endpoint rejected.
    pub(in crate::query) fn list_missing_embedding_notes(&self) -> Vec<String> {
        let source = self.embeddings.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = source.failure.as_ref().map(|why| {
            format!(
                "hqdl compares texts by their words, because embeddings are not available: {why}"
            )
        });
        let rejected = source.rejected.as_ref().map(|(count, why)| {
            let (texts, them) =
                if *count == 1 { ("text has", "it") } else { ("texts have", "them") };
            format!("{count} {texts} no embedding, because the endpoint rejected {them}: {why}")
        });
        failure.into_iter().chain(rejected).collect()
    }

    fn compute_embedding_similarities(
        &self,
        source: &mut EmbeddingsSource,
        model: &str,
        question: &str,
        passages: &[&str],
    ) -> Result<Vec<f64>, NoEmbeddings> {
        let client = source.open_client(self)?;
        let digests: Vec<PassageDigest> = passages.iter().map(|p| hash_passage(p)).collect();
        let question_digest = hash_passage(question);
        let all = digests.iter().zip(passages).map(|(d, p)| (*d, *p));
        let missing = client.find_missing_texts(all.chain([(question_digest, question)]))?;
        self.request_embeddings(client, &missing, EmbeddingNeed::Optional)?;
        let read = |digest: &PassageDigest| {
            client.vectors.get_vector(model, digest)?.ok_or_else(|| {
                let message = "an embedding is missing";
                NoEmbeddings::Unusable(QueryError::in_sql(message, None, "", ""))
            })
        };
        let question = read(&question_digest)?;
        digests.iter().map(|d| Ok(cosine_similarity(&question, &read(d)?))).collect()
    }
}

//! `/v1/embeddings`.

use async_openai::types::embeddings::{CreateEmbeddingRequestArgs, CreateEmbeddingResponse};

use crate::{Api, MODEL, passed};

async fn embed(api: &Api, texts: &[&str]) -> CreateEmbeddingResponse {
    let request = CreateEmbeddingRequestArgs::default().model(MODEL).input(texts.to_vec()).build().unwrap();
    api.embeddings().create(request).await.expect("embeddings")
}

pub async fn embeds(api: &Api) {
    let texts = ["The sun shines.", "It rains in Paris.", "The sun shines."];
    let answer = embed(api, &texts).await;
    let indices: Vec<u32> = answer.data.iter().map(|one| one.index).collect();
    assert_eq!(indices, [0, 1, 2]);
    let [first, other, again] = [0, 1, 2].map(|index| &answer.data[index].embedding);
    assert!(!first.is_empty() && first.iter().all(|value| value.is_finite()));
    assert_eq!(first.len(), other.len());
    assert_eq!(first, again, "the same text has the same embedding");
    assert_ne!(first, other, "another text has another one");
    assert!(answer.usage.prompt_tokens > 0 && answer.usage.total_tokens >= answer.usage.prompt_tokens);
    let alone = embed(api, &texts[1..2]).await;
    let nearly = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-3;
    assert!(alone.data[0].embedding.iter().zip(other).all(nearly), "neighbours change nothing");
    passed("embeddings");
}

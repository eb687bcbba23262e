//! Tests of slots: the number of requests in flight, and of requests prepared in advance.

use std::time::Duration;

use hqdl_model::generate::Slots;

fn hold(slots: &Slots, how_long: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let slot = slots.acquire_slot().await.unwrap();
        tokio::time::sleep(how_long).await;
        drop(slot);
    });
}

#[test]
fn only_requests_that_are_sent_soon_are_prepared() {
    let near = Slots::new(4, false);
    hold(&near, Duration::from_millis(1));
    assert_eq!(near.max_requests(), 4);
    let far = Slots::new(4, true);
    // Before the first answer, the duration of a request is unknown.
    assert_eq!(far.max_requests(), 4);
    hold(&far, Duration::from_millis(1));
    assert_eq!(far.max_requests(), 12);
    // With one slot and slow requests, a prepared request would wait too long.
    let slow = Slots::new(1, true);
    hold(&slow, Duration::from_millis(2100));
    assert_eq!(slow.max_requests(), 1);
}

#[test]
fn no_more_slots_are_held_than_exist_and_none_after_closing() {
    let slots = Slots::new(2, true);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let held = (slots.acquire_slot().await.unwrap(), slots.acquire_slot().await.unwrap());
        let third = slots.acquire_slot();
        let mut third = std::pin::pin!(third);
        assert!(
            std::future::poll_fn(|c| std::task::Poll::Ready(third.as_mut().poll(c).is_pending()))
                .await
        );
        slots.close();
        assert!(third.await.is_none());
        drop(held);
        assert!(slots.acquire_slot().await.is_none());
    });
}

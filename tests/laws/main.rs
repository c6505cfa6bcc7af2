//! The contract of every store: one function per law, over a [`Stage`] (or an [`AdminStage`]) with an empty store. The
//! lists below are complete; a law in no list does not compile. stages.rs runs them on every engine, wrapper and admin
//! store.
//!
//! - `laws!(name, constructor)` makes one test for each law of an engine. The constructor is an async function
//!   without arguments that returns an `impl Stage`.
//! - `laws!(name, constructor, virtual_time)` adds the laws that need a manual clock.
//! - `laws!(name, constructor, verbs)` adds the laws of verbs that lmstfy does not have.
//! - `laws_of!(name, constructor, part)` makes one test for each law of a part with its own kind of stage: `dead_age`,
//!   `observer`.
//! - `laws_together!(name, constructor, keep, verbs)` makes one test of all laws, for stages that share a store.
//! - `settings_laws!(name, constructor)` makes one test for each law of a settings store.
//! - `admin_laws!(name, constructor)` makes one test for each law of an admin store, and `admin_laws_together!(name,
//!   constructor, keep)` one test of all of them.
//!
//! Laws read results through the `Engine` and `AdminStore` traits only, so they are independent of how data is stored.
//!
//! [`Stage`]: crate::stage::Stage
//! [`AdminStage`]: crate::admin_stage::AdminStage

mod ack;
mod admin;
mod closing;
mod concurrency;
mod consume;
mod counts;
mod dead;
mod dead_age;
mod forget;
mod give_back;
mod held;
mod instants;
mod keys;
mod lists;
mod names;
mod notifier;
mod observer;
mod once;
mod peek;
mod promote;
mod publish;
mod quotas;
mod random;
mod random_verbs;
mod republish;
mod revive;
mod settings;
mod store;
mod timers;
mod ttl;
mod ttr;

mod admin_stage;
mod gated;
mod gated_settings;
mod jobs;
mod parts;
mod settings_stage;
mod stage;
mod stages;
mod together;

#[path = "../support"]
mod support {
    pub mod consume;
    pub mod disk_store;
    pub mod engine_ext;
    pub mod model;
    pub mod notified;
    pub mod redis_admin;
    pub mod redis_cluster;
    pub mod redis_connection;
    pub mod redis_server;
    pub mod wait;
}

/// Makes one test per law, on the stage returned by `$stage().await`.
macro_rules! laws {
    ($module:ident, $stage:expr $(, $more:ident)*) => {
        mod $module {
            #[allow(unused_imports)] // `$stage` may use items of the parent module
            use super::*;

            $crate::law_list! { law_tests, $stage }
            $($crate::more_laws! { law_tests, $more, $stage })*
        }
    };
}

/// Makes one test per law of a part, on a stage for that part.
macro_rules! laws_of {
    ($module:ident, $stage:expr, $part:ident) => {
        mod $module {
            #[allow(unused_imports)] // `$stage` may use items of the parent module
            use super::*;

            $crate::more_laws! { law_tests, $part, $stage }
        }
    };
}

/// Makes one test of all laws, for stages that share a cluster, except the laws listed in order.txt. The value of
/// `$keep` is dropped after the last law.
macro_rules! laws_together {
    ($module:ident, $stage:expr, $keep:expr $(, $more:ident)*) => {
        mod $module {
            #[allow(unused_imports)] // `$stage` may use items of the parent module
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn every_law() {
                let _keep = $keep;
                let mut all = $crate::law_list! { law_plays, $stage };
                $(all.extend($crate::more_laws! { law_plays, $more, $stage });)*
                $crate::together::play_on($crate::together::On::Cluster, all).await;
            }
        }
    };
}

/// Makes one test of the laws of a part, on a stage for that part and in a shared cluster.
macro_rules! laws_of_together {
    ($module:ident, $stage:expr, $keep:expr, $part:ident) => {
        mod $module {
            #[allow(unused_imports)] // `$stage` may use items of the parent module
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn every_law() {
                let _keep = $keep;
                $crate::together::play($crate::more_laws! { law_plays, $part, $stage }).await;
            }
        }
    };
}

/// Like `laws_together!`, for spread queues: without the laws of order listed in order.txt.
macro_rules! spread_laws_together {
    ($module:ident, $stage:expr, $keep:expr) => {
        mod $module {
            #[allow(unused_imports)] // `$stage` may use items of the parent module
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn every_law() {
                let _keep = $keep;
                let mut all = $crate::law_list! { law_plays, $stage };
                all.extend($crate::more_laws! { law_plays, verbs, $stage });
                $crate::together::play_on($crate::together::On::Spread, all).await;
            }
        }
    };
}

/// Lists the laws of every stage, for the macro `$run`.
macro_rules! law_list {
    ($run:ident, $stage:expr) => {
        $crate::$run! { $stage;
            publish {
                a_published_job_comes_out_as_it_went_in,
                an_empty_a_binary_and_a_large_body_stay_as_they_are,
                attributes_stay_with_versioned_ids_only,
                a_batch_comes_out_in_order,
                a_full_batch_is_taken,
                queues_are_first_in_first_out_over_batches,
                an_id_stored_in_any_state_fails_the_whole_batch,
                a_failed_publish_does_not_fail_its_neighbours,
                the_largest_values_work,
                a_dropped_publish_happened_or_did_not,
            }
            timers {
                a_delayed_job_is_not_handed_out_before_it_is_due,
                a_delayed_job_is_never_early_by_its_own_account,
                jobs_due_together_come_in_publish_order_whatever_their_tries,
                jobs_come_in_the_order_they_are_due,
                a_delayed_job_joins_at_the_tail,
                an_idle_pump_moves_nothing_and_may_sleep,
                the_pump_says_how_long_until_the_next,
                the_pump_stops_at_its_bound_and_goes_on_next_time,
                an_earlier_publish_wakes_the_pump,
                a_short_ttr_wakes_the_pump,
                a_later_publish_does_not_wake_the_pump,
            }
            consume {
                an_empty_queue_answers_nothing_at_once,
                queues_are_served_in_the_order_given,
                a_batch_goes_on_with_the_next_queue,
                each_job_has_the_ttr_in_its_place,
                a_full_consume_is_served,
                acked_heads_are_skipped,
                two_thousand_acked_heads_are_skipped,
                expired_heads_are_skipped,
                a_dropped_consume_loses_nothing,
                a_consume_only_queue_name_is_empty,
            }
            ttr {
                a_running_job_is_invisible_until_its_ttr_ends,
                each_hand_over_takes_one_try,
                a_job_without_tries_left_dies,
                a_returning_job_goes_to_the_tail,
                running_jobs_that_return_together_come_in_publish_order,
                returning_and_delayed_jobs_mix_by_when_they_are_due,
            }
            ack {
                ack_forgets_a_job_in_every_state,
                ack_twice_and_of_the_unknown_is_fine,
                an_acked_job_never_comes_back,
                ack_works_after_ttr_ended,
                ack_works_while_another_consumer_runs_the_job,
                ack_leaves_the_neighbours_alone,
            }
            republish {
                republish_replaces_a_job_in_every_state,
                republish_of_an_unknown_job_publishes,
                republish_can_delay,
                republish_with_a_taken_id_changes_nothing,
                a_republished_job_has_its_own_tries_and_ttl,
            }
            give_back {
                given_back_jobs_are_at_the_head_in_order_with_their_tries,
                a_job_on_its_last_try_is_given_back_alive,
                a_given_back_job_does_not_come_back_again_after_ttr,
                give_back_of_an_acked_job_does_nothing,
                give_back_after_ttr_ended_does_nothing,
                giving_back_twice_does_nothing_more,
                an_old_receipt_does_not_take_the_job_from_its_new_consumer,
                a_part_of_a_hand_over_can_be_given_back,
                given_back_jobs_keep_their_ttl,
            }
            peek {
                peek_shows_what_consume_would_give_and_changes_nothing,
                peek_sees_ready_jobs_only,
                peek_skips_acked_and_expired_heads,
                inspect_finds_a_job_in_every_state,
                inspect_knows_the_queue,
                size_counts_ready_jobs_only,
            }
            ttl {
                ttl_is_counted_from_publish,
                a_ready_job_expires,
                a_delayed_job_expires,
                a_running_job_expires_and_does_not_come_back,
                an_expired_running_job_does_not_die,
                a_dead_job_does_not_expire,
                a_job_without_ttl_stays,
            }
            dead {
                dead_jobs_lie_in_the_order_they_died,
                an_empty_dead_letter_says_so,
                dead_jobs_are_not_consumed,
                respawn_takes_the_oldest_up_to_the_limit,
                respawned_jobs_have_one_try_and_the_new_ttl,
                a_respawned_job_expires_and_dies_again,
                respawned_jobs_go_behind_the_ready_ones,
                respawn_of_more_than_there_are_takes_all,
                respawn_does_not_wake_an_acked_job,
                delete_dead_does_not_count_acked_jobs,
                delete_dead_forgets_the_oldest,
                delete_dead_of_more_than_there_are_takes_all,
                destroy_forgets_ready_jobs_only,
                destroy_forgets_many,
            }
            names {
                the_same_queue_name_in_two_namespaces_does_not_mix,
                names_that_read_alike_do_not_mix,
                the_longest_names_work,
                one_id_in_two_queues_is_two_jobs,
                queues_lists_what_was_published_to,
            }
            notifier {
                publish_notifies,
                a_due_job_notifies,
                a_returning_job_notifies,
                respawn_notifies,
                give_back_notifies,
                republish_notifies,
                every_attached_notifier_is_told,
                a_notifier_that_is_gone_is_in_nobodys_way,
            }
            concurrency {
                every_job_is_handed_out_exactly_once,
                consumers_of_one_call_each_share_without_overlap,
                jobs_given_back_under_load_are_not_lost,
                a_pump_under_load_loses_nothing,
            }
            random {
                random_steps_agree_with_the_model,
            }
            quotas {
                what_would_be_more_jobs_is_refused_as_a_whole,
                what_would_be_more_bytes_is_refused,
                the_usage_of_bounded_namespaces_is_returned,
                what_would_be_more_queues_is_refused,
                jobs_count_in_every_state_and_everything_else_goes_on,
                what_replaces_a_job_counts_by_the_difference,
                a_repeat_is_not_refused,
                a_duplicate_that_is_remembered_is_refused_when_the_quota_is_used_up,
                a_large_batch_is_refused_as_a_whole,
                the_last_quotas_count,
            }
            store {
                check_is_fine,
                stats_count_timers_ready_and_dead,
                stats_say_how_late_it_is,
                stats_tell_the_head_from_other_jobs,
                delays_are_counted_by_when_they_end,
                delays_of_many_jobs_are_counted_in_parts,
                a_job_says_when_it_was_due,
                after_close_every_call_says_closed,
                close_twice_is_fine,
            }
        }
    };
}

/// Lists laws that only some stages keep.
macro_rules! more_laws {
    ($run:ident, virtual_time, $stage:expr) => {
        $crate::$run! { $stage;
            instants {
                nothing_happens_one_millisecond_before,
                a_job_is_there_until_its_last_millisecond,
            }
        }
    };
    ($run:ident, dead_age, $stage:expr) => {
        $crate::$run! { $stage;
            dead_age {
                a_dead_job_goes_after_its_age,
                every_death_has_an_age,
                a_respawned_job_has_its_own_ttl,
                only_the_dead_have_an_age,
            }
        }
    };
    ($run:ident, observer, $stage:expr) => {
        $crate::$run! { $stage;
            observer {
                what_no_answer_says_is_told_to_the_observer,
            }
        }
    };
    ($run:ident, verbs, $stage:expr) => {
        $crate::$run! { $stage;
            keys {
                a_key_names_its_job_in_every_state_but_dead,
                a_taken_key_keeps_the_first_job,
                a_taken_key_fails_the_whole_call,
                a_delayed_or_ready_job_is_replaced,
                a_running_job_runs_on_without_its_key,
                a_key_is_free_with_the_end_of_its_job,
                a_key_is_free_when_its_job_dies,
                a_respawned_job_has_no_key,
                a_running_job_of_many_tries_runs_on_without_its_key,
                a_key_is_free_when_its_job_expires,
                a_key_stays_while_its_job_comes_and_goes,
                keys_of_other_queues_do_not_mix,
                cancel_forgets_the_job_of_a_key,
                a_call_with_one_key_twice_changes_nothing,
                a_keyed_call_with_a_taken_id_changes_nothing,
                the_longest_key_works,
                a_job_due_at_an_instant_is_not_early,
                jobs_due_at_one_instant_come_in_publish_order_over_calls,
                one_of_many_publishes_with_one_key_wins,
                a_key_that_a_job_elsewhere_has_is_answered_as_told,
            }
            once {
                a_repeated_request_gets_the_same_answer_and_does_nothing,
                another_request_with_its_key_is_refused,
                requests_of_other_queues_do_not_mix,
                what_failed_is_not_remembered,
                a_republish_is_safe_to_repeat,
                a_request_is_forgotten_in_the_end,
                one_of_many_equal_requests_is_done,
            }
            held {
                a_touched_job_runs_on,
                a_touch_can_shorten_the_ttr,
                a_touch_replaces_the_receipt,
                the_receipt_that_is_valid_is_told_to_whoever_had_one,
                a_receipt_ends_with_its_ttr,
                an_old_receipt_does_nothing_to_the_next_hand_over,
                what_is_gone_is_not_found,
                a_released_job_is_at_the_head,
                a_release_spends_the_try_unless_told,
                release_notifies,
                a_release_without_tries_left_is_death,
                a_delayed_release_waits,
                a_release_beyond_the_ttl_is_death,
                a_released_job_does_not_come_back_after_its_old_ttr,
                a_released_job_is_found_in_every_state,
                a_buried_job_is_dead,
                a_reason_is_shown_until_the_job_is_gone,
                ack_with_a_receipt_acks_only_what_is_held,
                workers_leave_each_job_where_they_were_told,
            }
            lists {
                jobs_are_listed_in_the_order_in_which_they_come,
                jobs_are_listed_once_while_others_come_and_go,
                a_list_shows_what_is_known_of_a_job,
                what_is_gone_is_not_listed,
                a_page_is_bounded,
                a_cursor_of_another_list_is_none,
                inspect_shows_every_state,
                queues_are_listed_with_their_figures,
                queues_are_listed_by_name,
            }
            promote {
                a_promoted_job_is_ready_behind_the_others,
                a_promoted_job_comes_once,
                only_delayed_jobs_are_promoted,
                a_job_is_promoted_by_its_key,
                a_released_job_can_be_promoted,
                promote_notifies,
            }
            forget {
                a_forgotten_queue_is_in_no_list,
                running_jobs_outlive_their_queue,
                the_name_of_a_queue_in_use_stays,
            }
            counts {
                delayed_and_running_jobs_are_counted,
                replaced_and_cancelled_jobs_are_no_longer_counted,
                due_jobs_are_no_longer_counted,
                jobs_of_one_call_are_each_counted,
            }
            closing {
                after_close_every_verb_says_closed,
            }
            revive {
                jobs_are_respawned_by_id,
                a_job_is_respawned_with_what_was_asked,
                only_dead_jobs_are_respawned,
            }
            random_verbs {
                random_verbs_agree_with_the_model,
            }
        }
    };
}

/// Lists the laws of every admin store, for the macro `$run`.
macro_rules! admin_law_list {
    ($run:ident, $stage:expr) => {
        $crate::$run! { $stage;
            admin {
                a_token_is_there_once_it_was_added,
                a_taken_token_is_not_added_again,
                a_removed_token_is_gone_with_its_limit,
                tokens_of_other_scopes_do_not_mix,
                names_and_tokens_with_separators_do_not_mix,
                limits_are_added_set_and_removed,
                a_look_up_shows_token_and_limit,
                many_tokens_and_limits_are_all_listed,
                counters_count_apart,
                what_is_not_below_the_limit_is_not_counted,
                a_counter_ends_after_its_interval,
                uncount_takes_one_back,
                uncount_never_goes_below_zero,
                uncount_leaves_the_next_interval_alone,
                concurrent_counts_are_all_counted,
                check_is_fine,
            }
        }
    };
}

/// Lists the laws of every settings store, for the macro `$run`.
macro_rules! settings_law_list {
    ($run:ident, $stage:expr) => {
        $crate::$run! { $stage;
            settings {
                a_record_is_read_as_it_was_put,
                a_put_from_another_version_changes_nothing,
                versions_grow_and_are_never_used_twice,
                of_many_that_change_one_record_none_is_lost,
                records_are_scanned_by_key,
                a_page_of_large_records_is_bounded,
                changes_are_told_in_order,
                many_changes_are_told_in_parts,
                a_kept_record_ends,
                a_dropped_put_happened_or_did_not,
                quotas_are_added_set_and_removed,
                records_move_from_another_store,
            }
        }
    };
}

/// Makes one test per law of settings stores, on the stage returned by `$stage().await`.
macro_rules! settings_laws {
    ($module:ident, $stage:expr) => {
        mod $module {
            #[allow(unused_imports)] // `$stage` may use items of the parent module
            use super::*;

            $crate::settings_law_list! { law_tests, $stage }
        }
    };
}

/// Makes one test per law of admin stores, on the stage returned by `$stage().await`.
macro_rules! admin_laws {
    ($module:ident, $stage:expr) => {
        mod $module {
            #[allow(unused_imports)] // `$stage` may use items of the parent module
            use super::*;

            $crate::admin_law_list! { law_tests, $stage }
        }
    };
}

/// Makes one test of all laws of admin stores.
macro_rules! admin_laws_together {
    ($module:ident, $stage:expr, $keep:expr) => {
        mod $module {
            #[allow(unused_imports)] // `$stage` may use items of the parent module
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn every_law() {
                let _keep = $keep;
                $crate::together::play($crate::admin_law_list! { law_plays, $stage }).await;
            }
        }
    };
}

/// Makes the tests of a list.
macro_rules! law_tests {
    ($stage:expr; $($topic:ident { $($law:ident),* $(,)? })*) => {
        $(mod $topic {
            #[allow(unused_imports)] // `$stage` may use items of the parent module
            use super::*;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $law() {
                let play = async {
                    let stage = $stage().await;
                    $crate::$topic::$law(&stage).await;
                };
                let end = std::time::Duration::from_secs(60);
                assert!(tokio::time::timeout(end, play).await.is_ok(), "the law still runs after a minute");
            })*
        })*
    };
}

/// Makes the list of laws for `together`.
macro_rules! law_plays {
    ($stage:expr; $($topic:ident { $($law:ident),* $(,)? })*) => {{
        let mut all: Vec<$crate::together::Law> = Vec::new();
        $($(all.push((concat!(stringify!($topic), "::", stringify!($law)), || {
            Box::pin(async {
                let stage = $stage().await;
                $crate::$topic::$law(&stage).await;
            })
        }));)*)*
        all
    }};
}

pub(crate) use {
    admin_law_list, admin_laws, admin_laws_together, law_list, law_plays, law_tests, laws, laws_of,
    laws_of_together, laws_together, more_laws, settings_law_list, settings_laws, spread_laws_together,
};

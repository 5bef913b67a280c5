#include "paceline/engine/rpc/references.h"

namespace paceline::rpc {

bool ObjectHolds::create(ObjectNumber object, SessionNumber holder) {
  if (!num_holders_.emplace(object, 1).second) return false;
  held_[holder].insert(object);
  return true;
}

bool ObjectHolds::hold(ObjectNumber object, SessionNumber holder) {
  const auto found = num_holders_.find(object);
  if (found == num_holders_.end()) return false;
  if (held_[holder].insert(object).second) ++found->second;
  return true;
}

void ObjectHolds::release(ObjectNumber object, SessionNumber holder, Destroyed& destroyed) {
  const auto session = held_.find(holder);
  if (session == held_.end() || session->second.erase(object) == 0) return;
  if (session->second.empty()) held_.erase(session);
  const auto found = num_holders_.find(object);
  if (--found->second > 0) return;
  num_holders_.erase(found);
  destroyed.push_back(object);
}

void ObjectHolds::end_session(SessionNumber holder, Destroyed& destroyed) {
  const auto session = held_.find(holder);
  if (session == held_.end()) return;
  const auto objects = std::move(session->second);
  held_.erase(session);
  for (const ObjectNumber object : objects) {
    const auto found = num_holders_.find(object);
    if (--found->second > 0) continue;
    num_holders_.erase(found);
    destroyed.push_back(object);
  }
}

void ReferenceCounts::receive(ObjectNumber object, Steps& steps) {
  Reference& reference = references_[object];
  if (++reference.copies > 1) return;
  reference.hold = ++last_hold_;
  steps.push_back({Step::Kind::kHold, object, reference.hold});
}

void ReferenceCounts::receive_held(ObjectNumber object) {
  Reference& reference = references_[object];
  ++reference.copies;
  reference.is_held = true;
}

// The answer to an older question says nothing of the hold that was asked for since: a release is
// between them.
void ReferenceCounts::held(ObjectNumber object, std::uint64_t hold) {
  const auto found = references_.find(object);
  if (found != references_.end() && found->second.hold == hold) found->second.is_held = true;
}

void ReferenceCounts::refused(ObjectNumber object, std::uint64_t hold) {
  const auto found = references_.find(object);
  if (found != references_.end() && found->second.hold == hold) references_.erase(found);
}

bool ReferenceCounts::is_held(ObjectNumber object) const {
  const auto found = references_.find(object);
  return found != references_.end() && found->second.is_held;
}

void ReferenceCounts::drop(ObjectNumber object, Steps& steps) {
  const auto found = references_.find(object);
  if (found == references_.end()) return;  // refused, or lost with its session
  if (--found->second.copies > 0) return;
  references_.erase(found);
  steps.push_back({Step::Kind::kRelease, object});
}

PassNumber ReferenceCounts::pass(ObjectNumber object) {
  copy(object);
  passing_.emplace(++last_pass_, object);
  return last_pass_;
}

void ReferenceCounts::passed(PassNumber pass, CallEnd end, LeaseTime keep_until, Steps& steps) {
  const auto found = passing_.find(pass);
  if (found == passing_.end()) return;  // lost with its session
  const ObjectNumber object = found->second;
  passing_.erase(found);
  if (end == CallEnd::kUnknown) {
    kept_until_.emplace(keep_until, object);
  } else {
    drop(object, steps);
  }
}

void ReferenceCounts::look(LeaseTime now, Steps& steps) {
  while (!kept_until_.empty() && kept_until_.begin()->first <= now) {
    const ObjectNumber object = kept_until_.begin()->second;
    kept_until_.erase(kept_until_.begin());
    drop(object, steps);
  }
}

void ReferenceCounts::lose_all() {
  references_.clear();
  passing_.clear();
  kept_until_.clear();
}

}  // namespace paceline::rpc

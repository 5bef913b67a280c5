#include "paceline/engine/rpc/references.h"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/rpc/protocol/frame.h"

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

// The answer to an older request is not the answer to the current hold, because a release lies
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
  if (found == references_.end()) return;  // it was refused, or lost with its session
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
  if (found == passing_.end()) return;  // it was lost with its session
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

namespace {

constexpr std::size_t kMaxReleases = 100'000;  // in one message
constexpr std::size_t kMaxCalls = 16;  // with this many calls to the owner under way, releases wait
constexpr std::chrono::seconds kOwnerAnswers(60);

CallTarget target_of(std::string_view method) {
  return {.method = method,
          .method_number = method_id(method),
          .effect = Effect::kOnce,
          .scope = Scope::kThisSession,
          .needs_credit = false};
}

}  // namespace

ObjectNumber new_object_number() {
  ObjectNumber number = 0;
  while (number == 0) fill_random(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

ReferenceHandle::~ReferenceHandle() {
  if (const auto there = table.lock()) there->drop(*this);
}

ReferenceTable::ReferenceTable(std::string self, LeaseTime lease, FindCaller find_caller)
    : self_(std::move(self)), lease_(lease), find_caller_(std::move(find_caller)) {}

HandlePointer ReferenceTable::created(const ObjectId& id) {
  const std::lock_guard lock(mutex_);
  Owner& owner = owners_[owner_of(id)];
  owner.counts.receive_held(id.number);
  return std::make_shared<ReferenceHandle>(weak_from_this(), id, owner.generation);
}

HandlePointer ReferenceTable::receive(const ObjectId& id) {
  ReferenceCounts::Steps steps;
  HandlePointer handle;
  {
    const std::lock_guard lock(mutex_);
    Owner& owner = owners_[owner_of(id)];
    handle = std::make_shared<ReferenceHandle>(weak_from_this(), id, owner.generation);
    owner.counts.receive(id.number, steps);
  }
  for (const auto& step : steps) ask(owner_of(id), step);
  return handle;
}

void ReferenceTable::ask(const OwnerId& owner, const ReferenceCounts::Step& hold) {
  const std::lock_guard asking(asking_);
  // References that were dropped earlier must be released first.
  send_releases(owner, true);
  try {
    const auto caller = find_caller_(owner.name);
    auto call = caller->call(target_of(kHoldMethod),
                             make_outgoing(ObjectList{{hold.object}}, caller->is_self()),
                             Deadline::after(kOwnerAnswers));
    const std::lock_guard lock(mutex_);
    owners_[owner].asked[hold.object] = {hold.hold, std::move(call)};
  } catch (const std::exception& error) {
    log::debug(self_ + ": a reference to an object of " + owner.name + ": " + error.what());
    const std::lock_guard lock(mutex_);
    owners_[owner].counts.refused(hold.object, hold.hold);
  }
}

// Takes the owner's answer, if it has arrived.
void ReferenceTable::settle_locked(Owner& owner, ObjectNumber object) {
  const auto asked = owner.asked.find(object);
  if (asked == owner.asked.end() || !asked->second.call->done()) return;
  const auto [hold, call] = std::move(asked->second);
  owner.asked.erase(asked);
  bool exists = false;
  try {
    Payload& reply = call->reply();
    ObjectStates states;
    if (const auto& own = reply.in_memory()) {
      if (const auto* object_states = own->object<ObjectStates>()) states = *object_states;
    } else {
      states = read_message<ObjectStates>(reply.bytes());
    }
    exists = !states.exist.empty() && states.exist.front() != 0;
  } catch (const std::exception&) {  // without an answer there is no hold
  }
  if (exists) {
    owner.counts.held(object, hold);
  } else {
    owner.counts.refused(object, hold);
  }
}

void ReferenceTable::confirm(const std::vector<HandlePointer>& references, Deadline deadline) {
  for (const auto& reference : references) {
    const ObjectId& id = reference->id;
    PendingPointer call;
    {
      const std::lock_guard lock(mutex_);
      const Owner& owner = owners_[owner_of(id)];
      const auto asked = owner.asked.find(id.number);
      if (asked == owner.asked.end()) continue;
      call = asked->second.call;
    }
    find_caller_(id.owner)->wait(call, deadline);
    const std::lock_guard lock(mutex_);
    settle_locked(owners_[owner_of(id)], id.number);
  }
}

void ReferenceTable::await_creation(const std::vector<HandlePointer>& references,
                                    Deadline deadline) {
  for (const auto& reference : references) {
    const auto& creation = reference->creation;
    if (creation && !creation->done()) find_caller_(reference->id.owner)->wait(creation, deadline);
  }
}

std::shared_ptr<Caller> ReferenceTable::caller_of(const ReferenceHandle& reference,
                                                  std::string_view method) {
  const auto& [owner_name, incarnation, number] = reference.id;
  auto caller = find_caller_(owner_name);
  using Reason = ReferenceError::Reason;
  const auto refuse = [&](Reason reason, std::string_view why) {
    throw ReferenceError(reason, owner_name, std::string(method),
                         fmt::format("{}: {} of an object of worker {} was not executed: {}", self_,
                                     method, owner_name, why));
  };
  const std::string connected = caller->incarnation();
  if (!connected.empty() && connected != incarnation) {
    refuse(Reason::kOwnerLost, "its worker has ended; another worker has the same name");
  }
  const bool counts = caller->lease_counts();
  const bool is_owner_gone = caller->is_callee_gone();
  const std::lock_guard lock(mutex_);
  Owner& owner = owners_[owner_of(reference.id)];
  settle_locked(owner, number);
  if (owner.generation != reference.generation || !counts) {
    if (is_owner_gone) refuse(Reason::kOwnerLost, "its worker has left or is lost");
    refuse(Reason::kExpired,
           "the reference has expired, because its worker did not hear from this worker in time");
  }
  if (!owner.counts.has(number)) refuse(Reason::kNoObject, "the object no longer exists");
  return caller;
}

std::function<void(CallEnd)> ReferenceTable::pass(const std::vector<HandlePointer>& references) {
  struct Passed {
    OwnerId owner;
    std::uint64_t generation;
    PassNumber number;
  };
  std::vector<Passed> all;
  const std::lock_guard lock(mutex_);
  for (const auto& reference : references) {
    const auto table = reference->table.lock();
    check(table.get() == this,
          "{}: a message has a reference that belongs to another worker or job (to an object of "
          "worker {})",
          self_, reference->id.owner);
    Owner& owner = owners_[owner_of(reference->id)];
    if (owner.generation != reference->generation || !owner.counts.has(reference->id.number)) {
      continue;
    }
    all.push_back(
        {owner_of(reference->id), owner.generation, owner.counts.pass(reference->id.number)});
  }
  return [all = std::move(all), self = shared_from_this()](CallEnd end) {
    const std::lock_guard locked(self->mutex_);
    for (const auto& [owner_id, generation, number] : all) {
      Owner& owner = self->owners_[owner_id];
      if (owner.generation != generation) continue;
      ReferenceCounts::Steps steps;
      owner.counts.passed(number, end, boot_time() + self->lease_, steps);
      self->note_releases_locked(owner, steps);
    }
  };
}

void ReferenceTable::pass_on(const std::vector<HandlePointer>& references) {
  pass(references)(CallEnd::kUnknown);
}

void ReferenceTable::note_releases_locked(Owner& owner, const ReferenceCounts::Steps& steps) {
  for (const auto& step : steps) owner.to_release.push_back(step.object);
}

void ReferenceTable::drop(const ReferenceHandle& reference) {
  const std::lock_guard lock(mutex_);
  Owner& owner = owners_[owner_of(reference.id)];
  if (owner.generation != reference.generation) return;
  ReferenceCounts::Steps steps;
  owner.counts.drop(reference.id.number, steps);
  note_releases_locked(owner, steps);
}

void ReferenceTable::lose(const OwnerId& owner_id) {
  const std::lock_guard lock(mutex_);
  Owner& owner = owners_[owner_id];
  owner.counts.lose_all();
  ++owner.generation;
  owner.to_release.clear();
  owner.asked.clear();
}

// Sends a message of collected releases to an owner, unless many calls to the owner are under way.
// With `now`, sends all releases in any case. Requires: asking_ is held.
void ReferenceTable::send_releases(const OwnerId& owner, bool now) {
  const auto take = [&](std::size_t most) {
    const std::lock_guard lock(mutex_);
    auto& all = owners_[owner].to_release;
    const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), most));
    std::vector<ObjectNumber> objects(all.begin(), end);
    all.erase(all.begin(), end);
    return objects;
  };
  try {
    const auto caller = find_caller_(owner.name);
    if (!now && caller->num_calls() >= kMaxCalls) return;
    // A message of kMaxReleases numbers may be above the owner's limit.
    const std::size_t most =
        std::min(kMaxReleases, caller->max_message() / (2 * sizeof(ObjectNumber)));
    do {
      auto objects = take(std::max<std::size_t>(most, 1));
      if (objects.empty()) return;
      caller->call(target_of(kReleaseMethod),
                   make_outgoing(ObjectList{std::move(objects)}, caller->is_self()),
                   Deadline::after(kOwnerAnswers));
    } while (now);
  } catch (const std::exception& error) {  // this worker is leaving, so its sessions end
    log::debug(self_ + ": releasing objects of " + owner.name + ": " + error.what());
  }
}

void ReferenceTable::look() {
  const std::unique_lock asking(asking_, std::try_to_lock);
  if (!asking) return;
  std::vector<OwnerId> owners;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [id, owner] : owners_) {
      std::vector<ObjectNumber> asked;
      for (const auto& [object, call] : owner.asked) asked.push_back(object);
      for (const ObjectNumber object : asked) settle_locked(owner, object);
      ReferenceCounts::Steps steps;
      owner.counts.look(boot_time(), steps);
      note_releases_locked(owner, steps);
      if (!owner.to_release.empty()) owners.push_back(id);
    }
  }
  for (const OwnerId& owner : owners) send_releases(owner, false);
}

std::size_t ReferenceTable::num_objects() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& [id, owner] : owners_) count += owner.counts.num_objects();
  return count;
}

}  // namespace paceline::rpc

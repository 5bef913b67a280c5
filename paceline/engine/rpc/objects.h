#pragma once

// The objects of this worker to which others have references: who holds each (ObjectHolds), and the
// calls at it, which run one at a time in the order in which they arrived, the constructor first.
// An object whose last hold has ended is destroyed once the calls that came before have run.
//
// Thread safety: all methods. None runs code of the objects: what dies is handed out.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "paceline/engine/rpc/incoming.h"
#include "paceline/engine/rpc/references.h"

namespace paceline::rpc {

class Objects {
 public:
  using Dead = std::vector<std::shared_ptr<void>>;

  // A new object of a class, whose constructor runs later. False if there is one of this number.
  bool create(ObjectNumber number, std::uint64_t class_number, SessionNumber holder);
  // As create(), of an object that exists. The object stays untouched if this returns false.
  bool keep(ObjectNumber number, std::uint64_t class_number, SessionNumber holder,
            std::shared_ptr<void>&& object);

  enum class Admission : std::uint8_t { kRun, kWaits, kNoObject, kOtherClass, kTooMany };
  // A call at an object: kRun if it is to be run now; otherwise finished() of another says when.
  Admission admit(ObjectNumber number, std::uint64_t class_number,
                  const std::shared_ptr<Incoming>& call, std::size_t max_waiting);
  // The object, once its constructor has ended; null if that failed, with the reason.
  std::shared_ptr<void> find(ObjectNumber number, std::string& why_not) const;
  // The object, if it exists and is of this class.
  std::shared_ptr<void> find_of(std::uint64_t class_number, ObjectNumber number) const;
  // The constructor has ended.
  void constructed(ObjectNumber number, std::shared_ptr<void> object);
  void failed(ObjectNumber number, const std::string& why);
  // A call has ended. Returns the next one.
  std::shared_ptr<Incoming> finished(ObjectNumber number, Dead& dead);

  bool hold(ObjectNumber number, SessionNumber holder);
  void release(ObjectNumber number, SessionNumber holder, Dead& dead);
  void end_session(SessionNumber holder, Dead& dead);
  // The calls that wait for others at their objects. They do not run any more.
  std::vector<std::shared_ptr<Incoming>> take_waiting();
  // Also those whose calls have not ended.
  void forget_all();
  std::size_t num_objects() const;

 private:
  struct Object {
    std::uint64_t class_number = 0;
    std::shared_ptr<void> instance{};
    std::unique_ptr<std::string> failure{};
    Lane lane{};
    bool is_released = false;
  };
  void bury_locked(const ObjectHolds::Destroyed& numbers, Dead& dead);

  mutable std::mutex mutex_;  // guards what follows
  ObjectHolds holds_;
  std::unordered_map<ObjectNumber, Object> objects_;
};

}  // namespace paceline::rpc

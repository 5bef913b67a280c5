#pragma once

// Records which bytes of a rank are being sent or received, so that steps can overlap with earlier
// sends and receives: a read waits while its bytes are being received; a write waits while its
// bytes are being received or sent. Bytes that a transfer has already moved are free, even if the
// transfer continues. MessageExecutor uses Scoreboard, the simulator RangesInUse. Thread safety:
// none.

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace paceline {

class Scoreboard {
 public:
  struct Bytes {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    bool overlaps(const Bytes& other) const { return begin < other.end && other.begin < end; }
  };

  // Begins a send, which reads `bytes`, or a receive, which writes them.
  void begin(std::uint64_t id, Bytes bytes, bool writes) {
    if (bytes.begin < bytes.end) pending_.push_back({id, bytes.begin, bytes, writes});
  }
  // moved(id) returns how many bytes of a transfer have moved, counted from its beginning. A
  // transfer has ended when that number is at least its length.
  template <class Moved>
  void update(Moved moved) {
    std::erase_if(pending_, [&](Pending& one) {
      const std::size_t bytes = moved(one.id);
      one.rest.begin = std::min(one.rest.end, one.begin + std::min(bytes, one.size()));
      return one.rest.begin == one.rest.end;
    });
  }
  bool empty() const { return pending_.empty(); }
  void clear() { pending_.clear(); }

  bool may_read(Bytes bytes) const { return !conflicts(bytes, false); }
  bool may_write(Bytes bytes) const { return !conflicts(bytes, true); }

 private:
  struct Pending {
    std::uint64_t id;
    std::uintptr_t begin;
    Bytes rest;  // bytes that have not moved yet
    bool writes;
    std::size_t size() const { return rest.end - begin; }
  };

  bool conflicts(Bytes bytes, bool writes) const {
    for (const Pending& one : pending_) {
      if ((writes || one.writes) && one.rest.overlaps(bytes)) return true;
    }
    return false;
  }

  std::vector<Pending> pending_;
};

// Like Scoreboard, for the simulator's ranks, which may have thousands of messages under way.
// Ranges are kept in a sorted map, and a whole range is in use until its transfer ends. Cost:
// logarithmic in the number of ranges, as long as their lengths are similar.
class RangesInUse {
 public:
  using Bytes = Scoreboard::Bytes;

  // Begins a send, which reads `bytes`, or a receive, which writes them.
  void begin(Bytes bytes, bool writes) {
    if (bytes.begin < bytes.end) (writes ? written_ : read_).insert(bytes);
  }
  // Ends a transfer that begin() began with the same arguments.
  void end(Bytes bytes, bool writes) {
    if (bytes.begin < bytes.end) (writes ? written_ : read_).erase(bytes);
  }
  bool empty() const { return read_.empty() && written_.empty(); }
  bool may_read(Bytes bytes) const { return !written_.overlap(bytes); }
  bool may_write(Bytes bytes) const { return may_read(bytes) && !read_.overlap(bytes); }

 private:
  class Ranges {
   public:
    void insert(Bytes bytes) {
      ends_.emplace(bytes.begin, bytes.end);
      longest_ = std::max(longest_, bytes.end - bytes.begin);
    }
    void erase(Bytes bytes) {
      auto found = ends_.find(bytes.begin);
      while (found->second != bytes.end) ++found;
      ends_.erase(found);
    }
    bool empty() const { return ends_.empty(); }
    bool overlap(Bytes bytes) const {
      if (ends_.empty()) return false;
      auto at = ends_.lower_bound(bytes.begin - std::min(bytes.begin, longest_));
      for (; at != ends_.end() && at->first < bytes.end; ++at) {
        if (at->second > bytes.begin) return true;
      }
      return false;
    }

   private:
    std::multimap<std::uintptr_t, std::uintptr_t> ends_;  // the ends of ranges, by their beginnings
    std::uintptr_t longest_ = 0;                          // the longest range so far
  };

  Ranges read_, written_;
};

}  // namespace paceline

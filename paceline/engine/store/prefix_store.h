#pragma once

// A part of a store with keys of its own.

#include <chrono>
#include <memory>
#include <string>

#include "paceline/engine/store/store.h"

namespace paceline {

// A view of another store in which every key k is "prefix/k": one store serves many groups,
// generations and purposes without collisions. num_keys() and the timeout are those of the
// underlying store.
//
// Thread safety: as Store. A PrefixStore shares ownership of the underlying store.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> below);

  StoreReply run(const StoreRequest& request) override;
  std::chrono::milliseconds timeout() const override { return below_->timeout(); }
  void set_timeout(std::chrono::milliseconds timeout) override { below_->set_timeout(timeout); }

 private:
  std::string prefix_;
  std::shared_ptr<Store> below_;
};

}  // namespace paceline

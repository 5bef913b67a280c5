#include "paceline/collectives/backends/paceline/paceline_backend.h"

#include "paceline/core/check.h"
#include "paceline/core/log.h"
#include "paceline/transport/mapping.h"

namespace paceline {

PacelineBackend::PacelineBackend(std::unique_ptr<Mesh> mesh, Deadline deadline)
    : mesh_(std::move(mesh)), messages_(*mesh_), point_to_point_(*mesh_) {
  if (mesh_->shared_memory() == nullptr) return;
  try {
    shared_.emplace(*mesh_, deadline);
  } catch (const Error& error) {
    // Every rank got the same answer (SharedMemory::allocate), so every rank falls back.
    if (error.code() != ErrorCode::kSystem) {
      abort(error);
      throw;
    }
    if (mesh_->rank() == 0) {
      log::warning(std::string(error.what()) + "; continuing over sockets, which is slower");
    }
  }
}

const char* PacelineBackend::transport() const {
  if (mesh_->world_size() == 1) return "none";
  return shared_ ? mesh_->shared_memory()->name() : "tcp";
}

bool PacelineBackend::supports(Op op, Dtype dtype, ReduceOp reduce_op, Device device) const {
  return device == Device::kCpu && (!reduces(op) || is_defined(reduce_op, dtype));
}

void PacelineBackend::run(const Collective& call, const Fingerprint& fingerprint,
                          const WaitOptions& wait) {
  guarded([&] {
    if (shared_) {
      shared_->run(call, fingerprint, wait);
    } else {
      messages_.run(call, fingerprint, wait);
    }
  });
}

WorkPtr PacelineBackend::send(const PointToPointCall& call, Deadline deadline) {
  return point_to_point_.send(call, deadline);
}

WorkPtr PacelineBackend::receive(const PointToPointCall& call, Deadline deadline) {
  return point_to_point_.receive(call, deadline);
}

SymmetricBuffer PacelineBackend::allocate_symmetric(std::size_t bytes, Pages pages,
                                                    Deadline deadline) {
  if (shared_) {
    try {
      const auto blocks = shared_->allocate(bytes, pages, deadline);
      return {blocks->of(mesh_->rank()), bytes, blocks, is_live_};
    } catch (const Error& error) {
      // Of a lack of memory every rank has heard, and the group goes on.
      if (error.code() != ErrorCode::kSystem) abort(error);
      throw;
    }
  }
  auto mapping = std::make_shared<Mapping>(Mapping::anonymous(bytes, pages));
  return {mapping->data(), bytes, mapping, is_live_};
}

// Over sockets no memory is copied before it is sent.
bool PacelineBackend::is_symmetric(ConstBuffer buffer) const {
  return !shared_ || shared_->is_symmetric(buffer.data, buffer.bytes());
}

void PacelineBackend::guarded(const std::function<void()>& operation) {
  if (mesh_->failed()) mesh_->throw_if_failed();
  try {
    operation();
  } catch (const Error& error) {
    abort(error);
    throw;
  } catch (const std::exception& error) {  // no memory: the other ranks must not wait for this one
    const Error cause(ErrorCode::kSystem,
                      fmt::format("rank {}: a collective of group {} failed: {}", mesh_->rank(),
                                  mesh_->name(), error.what()));
    abort(cause);
    throw cause;
  }
}

void PacelineBackend::abort(const Error& cause) {
  *is_live_ = false;
  mesh_->abort(cause);
  point_to_point_.wake();
}

}  // namespace paceline

#include "paceline/engine/collectives/backends/library_backend.h"

#include <thread>

namespace paceline {
namespace {

// How long a death may take from a library's connection to the engine's lifeline.
constexpr std::chrono::milliseconds kNoticeTime{500};
constexpr std::chrono::milliseconds kLookAgain{2};

}  // namespace

const char* LibraryBackend::transport() const {
  return libraries_.cpu ? libraries_.cpu->transport() : engine_->transport();
}

std::string LibraryBackend::explain(const PlanRequest& request) const {
  if (!libraries_.cpu) return engine_->explain(request);
  return std::string(name_of(request.op)) + ": backend " + name_ + " chooses for itself\n";
}

bool LibraryBackend::supports(Op op, Dtype dtype, ReduceOp reduce_op, Device device) const {
  const Library* library = library_of(device);
  if (library == nullptr) return engine_->supports(op, dtype, reduce_op, device);
  if (has_counts(op))
    return device == Device::kCpu && engine_->supports(op, dtype, reduce_op, device);
  return library->supports(op, dtype, reduce_op);
}

void LibraryBackend::run(const Collective& call, const Fingerprint& fingerprint,
                         const WaitOptions& wait) {
  Library* library = library_of(call.device);
  const bool is_own = has_counts(call.op) || call.part_of;
  if (library == nullptr || is_own) return engine_->run(call, fingerprint, wait);
  // Every rank makes this call, or none continues.
  engine_->run({}, fingerprint, wait);
  if (call.op == Op::kBarrier || call.op == Op::kAllocate || call.count == 0) return;
  try {
    library->run(call, fingerprint.sequence, wait.deadline);
    // A run that was ended by abort() may look like a success.
    if (engine_->mesh().failed()) engine_->mesh().throw_if_failed();
  } catch (const Error& error) {
    fail_with(error);
  } catch (...) {  // no memory
    fail_with(Error(ErrorCode::kSystem, describe_current_exception()));
  }
}

// A library sees only that a connection broke, and some say just that something failed. The engine
// learns soon after which rank died, or gave up and why.
void LibraryBackend::fail_with(const Error& error) {
  const auto until = Deadline::after(kNoticeTime);
  try {
    while (error.code() != ErrorCode::kTimeout && !until.expired()) {
      engine_->mesh().throw_if_failed();
      std::this_thread::sleep_for(kLookAgain);
    }
    engine_->mesh().throw_if_failed();
  } catch (const Error& cause) {
    abort(cause);
    throw;
  }
  abort(error);
  throw Error(error);
}

WorkPtr LibraryBackend::send(const PointToPointCall& call, Deadline deadline) {
  return engine_->send(call, deadline);
}

WorkPtr LibraryBackend::receive(const PointToPointCall& call, Deadline deadline) {
  return engine_->receive(call, deadline);
}

SymmetricBuffer LibraryBackend::allocate_symmetric(std::size_t bytes, Pages pages,
                                                   const Fingerprint& fingerprint,
                                                   const WaitOptions& wait) {
  return engine_->allocate_symmetric(bytes, pages, fingerprint, wait);
}

// To a library all memory is alike.
bool LibraryBackend::is_symmetric(ConstBuffer buffer) {
  return library_of(buffer.device) == nullptr && engine_->is_symmetric(buffer);
}

void LibraryBackend::abort(const Error& cause) {
  engine_->abort(cause);
  for (Library* library : {libraries_.cpu.get(), libraries_.cuda.get()}) {
    if (library != nullptr) library->abort();
  }
}

}  // namespace paceline

#pragma once

// A Gloo context whose waits can all be ended from another thread.
//
// Gloo wakes the waits of a broken connection, except for two: for a send that is half written and
// for a receive that is half read. Such a buffer can be woken by itself, but an algorithm has
// buffers of its own, which its caller never sees. So the transport is wrapped: every buffer comes
// from here and is in a list while it exists.
//
// Thread safety: end_waits() may be called at any time, from any thread.

#include <memory>
#include <string>

#include <gloo/rendezvous/context.h>

namespace paceline {

class AbortableContext : public gloo::rendezvous::Context {
 public:
  using gloo::rendezvous::Context::Context;

  // Connects all ranks over TCP from this address of the host. Errors: Gloo's exceptions.
  void connect(gloo::rendezvous::Store& store, const std::string& address);

  // Breaks all connections and makes every wait throw, also those that begin later. A second call
  // does no harm. Requires: connected.
  void end_waits();
};

}  // namespace paceline

#pragma once

// The cart and pole of Barto, Sutton and Anderson (1983), with the constants of CartPole-v1 in
// OpenAI's Gym. The player pushes the cart to the left or to the right so that the pole stays up.

#include <array>
#include <cmath>
#include <cstdint>
#include <random>

class CartPole {
 public:
  using State = std::array<float, 4>;  // position, speed, angle, angular speed
  explicit CartPole(std::uint32_t seed) : random_(seed) {}

  // A random number in [0, 1), from a sequence that is the same on every machine.
  double draw() { return static_cast<double>(random_()) / 4294967296.0; }
  State reset() {
    for (float& value : state_) value = static_cast<float>(0.1 * draw() - 0.05);
    return state_;
  }
  // Pushes for a fiftieth of a second. Returns false once the pole has fallen or the cart has left
  // the track.
  bool push(bool to_the_right) {
    constexpr float kGravity = 9.8F, kMass = 1.1F, kPoleMass = 0.1F, kHalfLength = 0.5F;
    constexpr float kForce = 10, kSeconds = 0.02F, kTrack = 2.4F, kFallen = 0.20943951F;
    auto& [position, speed, angle, angular_speed] = state_;
    const float sine = std::sin(angle), cosine = std::cos(angle);
    const float force = to_the_right ? kForce : -kForce;
    const float push =
        (force + kPoleMass * kHalfLength * angular_speed * angular_speed * sine) / kMass;
    const float angular_acceleration =
        (kGravity * sine - cosine * push) /
        (kHalfLength * (4.0F / 3 - kPoleMass * cosine * cosine / kMass));
    const float acceleration =
        push - kPoleMass * kHalfLength * angular_acceleration * cosine / kMass;
    position += kSeconds * speed;
    speed += kSeconds * acceleration;
    angle += kSeconds * angular_speed;
    angular_speed += kSeconds * angular_acceleration;
    return std::abs(position) <= kTrack && std::abs(angle) <= kFallen;
  }
  const State& state() const { return state_; }

 private:
  std::mt19937 random_;
  State state_{};
};

// mac.h - keyed BLAKE2s of 16 bytes (RFC 7693) by the OpenSSL that Node brings along: mac1 of WireGuard's handshakes,
// which shows that a sender knows whom it sends to.
//
// The length is hashed too, so these are not the first 16 bytes of 32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace weft {

/// Of one key, used by one thread at a time.
class Mac {
 public:
  static constexpr size_t kBytes = 16, kKeyBytes = 32;

  /// Null where this process has no OpenSSL, or OpenSSL not the MAC, or the answer to a known question is wrong.
  static std::unique_ptr<Mac> create(std::span<const uint8_t, kKeyBytes> key);
  ~Mac();
  Mac(const Mac&) = delete;
  Mac& operator=(const Mac&) = delete;

  /// True when it is the message's, which is told in a time that does not depend on it.
  bool is_of(std::span<const uint8_t> message, std::span<const uint8_t, kBytes> mac);

 private:
  struct Library;
  explicit Mac(const Library& library);
  bool begin(std::span<const uint8_t, kKeyBytes> key);
  bool compute(std::span<const uint8_t> message, uint8_t* mac);
  bool knows_answer();

  std::unique_ptr<const Library> library_;
  void* algorithm_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace weft

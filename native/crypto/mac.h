// mac.h - keyed BLAKE2s with 16 bytes (RFC 7693) by Node's OpenSSL. It verifies the mac1 of WireGuard's handshakes,
// which proves that the sender knows this host's public key.
//
// The output length is part of the hash, so these are not the first 16 bytes of a 32-byte hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace weft {

/// A MAC with one key. Used by one thread at a time.
class Mac {
 public:
  static constexpr size_t kBytes = 16, kKeyBytes = 32;

  /// Returns null if this process has no OpenSSL, if OpenSSL lacks BLAKE2s, or if a known answer is wrong.
  static std::unique_ptr<Mac> create(std::span<const uint8_t, kKeyBytes> key);
  ~Mac();
  Mac(const Mac&) = delete;
  Mac& operator=(const Mac&) = delete;

  /// True if `mac` is the MAC of the message. The comparison takes constant time.
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

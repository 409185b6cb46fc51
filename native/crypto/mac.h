// mac.h - keyed BLAKE2s with 16 bytes of output (RFC 7693), computed by Node's OpenSSL. weft uses it to verify the
// field mac1 of WireGuard's handshake messages, which proves that the sender knows this host's public key.
//
// The output length is a parameter of BLAKE2s, so the MAC is not the beginning of a 32-byte hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace weft {

/// Computes MACs with one key. Only one thread at a time uses a Mac.
class Mac {
 public:
  static constexpr size_t kBytes = 16, kKeyBytes = 32;

  /// Returns null if this process has no OpenSSL, if OpenSSL lacks BLAKE2s, or if a test vector gives a wrong result.
  static std::unique_ptr<Mac> create(std::span<const uint8_t, kKeyBytes> key);
  ~Mac();
  Mac(const Mac&) = delete;
  Mac& operator=(const Mac&) = delete;

  /// True if `mac` is the right MAC of the message. The comparison takes constant time, so its duration reveals nothing
  /// about the MAC.
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

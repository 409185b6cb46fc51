// aead.h - ChaCha20-Poly1305 (RFC 8439) with Node's OpenSSL. Each loop thread has one context for encryption and one
// for decryption; while consecutive packets use the same key, only the nonce changes.
//
// The OpenSSL functions are found by name at run time (library.h). create() checks a test vector, so that a lack of the
// cipher in Node.js (FIPS) is noticed before the first packet.
//
// A packet is encrypted in place and in one piece, because OpenSSL's vectorised code works on whole blocks. Two pieces
// cost 200 ns more than one piece; copying a payload of 1,372 bytes into one piece costs less than can be measured
// (encryption takes 1.0 us for 1,424 bytes and 0.45 us for 64, on a Zen 4 at 2 GHz).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace weft {

/// A key of 32 bytes, which the destructor wipes.
class Key {
 public:
  static constexpr size_t kBytes = 32;
  Key() = default;
  explicit Key(const uint8_t* bytes);
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key();
  const uint8_t* data() const { return bytes_.data(); }

 private:
  std::array<uint8_t, kBytes> bytes_{};
};

/// Encrypts ("seals") or decrypts ("opens") packets. Only one thread at a time uses an Aead.
class Aead {
 public:
  static constexpr size_t kTagBytes = 16;
  enum class Way : bool { kOpen, kSeal };

  /// Returns null if this process has no OpenSSL, if OpenSSL lacks the cipher, or if a test vector gives a wrong
  /// result.
  static std::unique_ptr<Aead> create(Way way);
  ~Aead();
  Aead(const Aead&) = delete;
  Aead& operator=(const Aead&) = delete;

  /// The number of the key in use, as passed to use(); 0 if there is no key.
  uint64_t key_number() const { return key_number_; }
  /// Sets the key for the following packets. As long as the process runs, `number` must always identify the same key.
  void use(uint64_t number, const Key& key);
  /// Wipes the key in use and everything that OpenSSL derived from the key. Frees and allocates memory, so it must not
  /// be called for each packet.
  void forget();

  /// Encrypts `bytes` in place, and writes the authentication tag into the kTagBytes of space after `bytes`. The nonce
  /// is four zero bytes and the little-endian counter. There is no additional authenticated data. Returns false if
  /// OpenSSL failed; the bytes are undefined in that case.
  bool seal(uint64_t counter, std::span<uint8_t> bytes);
  /// Decrypts `bytes` in place. `bytes` is a result of seal(), and its tag follows it. Returns false if the tag is
  /// wrong; the bytes are undefined in that case.
  bool open(uint64_t counter, std::span<uint8_t> bytes);

 private:
  struct Library;
  struct Context;
  explicit Aead(const Library& library, Way way);
  bool begin();
  bool set_nonce(uint64_t counter);
  bool knows_answer();

  std::unique_ptr<const Library> library_;
  Way way_;
  Context* context_ = nullptr;
  uint64_t key_number_ = 0;
};

}  // namespace weft

// fragment.cc - splits an IPv4 packet, and writes the header of each fragment.
#include "fragment.h"

#include <algorithm>

#include "checksum.h"

namespace weft {

namespace {

constexpr size_t kBlockBytes = 8;
constexpr uint16_t kMoreFragments = 0x2000;

/// Replaces options that only the first fragment may have (RFC 791 section 3.1, the copied flag) with no-operations.
void keep_copied_options(uint8_t* at, const uint8_t* end) {
  constexpr uint8_t kEnd = 0, kNothing = 1, kCopied = 0x80;
  while (at < end && *at != kEnd) {
    const size_t size = *at == kNothing ? 1 : end - at < 2 ? 0 : at[1];
    if (size == 0 || size > static_cast<size_t>(end - at)) return;
    if (!(*at & kCopied)) std::fill(at, at + size, kNothing);
    at += size;
  }
}

}  // namespace

Fragmenter::Fragmenter(const Segment& packet, size_t ip_bytes, size_t mtu)
    : packet_(packet), ip_bytes_(ip_bytes), room_(mtu - ip_bytes) {}

Segment Fragmenter::next(uint8_t* header) {
  const bool first = offset_ == 0;
  // The header piece may contain bytes after the IP header, such as a TCP header. Only the first fragment gets these
  // bytes.
  const size_t rest = packet_.header_bytes - ip_bytes_;
  const size_t header_bytes = first ? packet_.header_bytes : ip_bytes_;
  const size_t left = packet_.payload_bytes - offset_, before = first ? rest : 0;
  // The length of every fragment except the last must be a multiple of 8 (RFC 791 section 3.2).
  const size_t size = before + left <= room_ ? left : room_ / kBlockBytes * kBlockBytes - before;
  std::memcpy(header, packet_.header, header_bytes);
  const uint16_t word = load_be16(header + 6);
  const size_t blocks = (first ? 0 : rest + offset_) / kBlockBytes;
  const bool last = offset_ + size == packet_.payload_bytes;
  if (!first) keep_copied_options(header + kIpv4HeaderBytes, header + ip_bytes_);
  store_be16(header + 2, static_cast<uint16_t>(header_bytes + size));
  store_be16(header + 6, static_cast<uint16_t>((word + blocks) | (last ? 0 : kMoreFragments)));
  store(header + 10, ipv4_header_checksum(header, ip_bytes_));
  const Segment fragment{header, header_bytes, packet_.payload + offset_, size};
  offset_ += size;
  return fragment;
}

}  // namespace weft

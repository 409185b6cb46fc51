// encapsulation.ts - the encapsulations: how a datagram contains an inner packet.
//
// This file serves the engine `dgram`, which supports only flannel's udp. The native engine supports all
// encapsulations, with the same names, in native/encap/all.h.

export type EncapsulationName = 'udp' | 'vxlan' | 'wireguard'

export interface Encapsulation {
  /**
   * The number of bytes that the encapsulation adds before each packet; `trailerBytes` is the number that it adds after
   * the packet.
   */
  readonly headerBytes: number
  readonly trailerBytes: number
  /**
   * Returns the datagram that contains a packet. If the encapsulation adds no bytes, the datagram is the packet's own
   * Buffer.
   */
  readonly seal: (packet: Buffer) => Buffer
  /** Returns the packet inside a datagram without copying it; undefined if the datagram contains no packet. */
  readonly open: (datagram: Buffer) => Buffer | undefined
}

export const ENCAPSULATIONS = {
  /** flannel's udp: a datagram contains exactly one packet (pkg/backend/udp/proxy_amd64.c). */
  udp: { headerBytes: 0, trailerBytes: 0, seal: (packet) => packet, open: (datagram) => datagram },
} satisfies Readonly<Partial<Record<EncapsulationName, Encapsulation>>>

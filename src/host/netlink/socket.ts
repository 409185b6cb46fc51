// socket.ts - sends requests to the kernel and returns its answers.

/** The kernel's answer to one request. */
export interface Answer {
  /** The messages of the answer, one after another, without the acknowledgement; `messagesIn` reads them. */
  readonly data: Buffer
  /** The error number of a refused request, such as 17 for EEXIST; 0 if the kernel accepted the request. */
  readonly errno: number
  /** The kernel's own explanation of a refusal (NLMSGERR_ATTR_MSG, Linux 4.12); undefined if it gave none. */
  readonly explanation: string | undefined
}

/** A socket to one subsystem of the kernel, such as rtnetlink(7). */
export interface NetlinkSocket {
  /**
   * Sends the requests in one batch and returns their answers in the same order. Each request must have the flag
   * NLM_F.ACK or NLM_F.DUMP. The socket sets the sequence numbers. Rejects only if the kernel does not answer at all.
   */
  exchange(requests: readonly Buffer[]): Promise<readonly Answer[]>
}

// errno.ts - the names and texts of the error numbers with which the kernel refuses requests (errno(3)).

import { constants } from 'node:os'

/** The texts of the C library for the error numbers that netlink requests return, as `ip` prints them. */
const TEXTS: Readonly<Record<string, string>> = {
  EPERM: 'Operation not permitted',
  ENOENT: 'No such file or directory',
  ESRCH: 'No such process',
  EINTR: 'Interrupted system call',
  EIO: 'Input/output error',
  ENXIO: 'No such device or address',
  E2BIG: 'Argument list too long',
  EAGAIN: 'Resource temporarily unavailable',
  ENOMEM: 'Cannot allocate memory',
  EACCES: 'Permission denied',
  EBUSY: 'Device or resource busy',
  EEXIST: 'File exists',
  EXDEV: 'Invalid cross-device link',
  ENODEV: 'No such device',
  EINVAL: 'Invalid argument',
  ENFILE: 'Too many open files in system',
  EMFILE: 'Too many open files',
  ENOSPC: 'No space left on device',
  ERANGE: 'Numerical result out of range',
  ENOSYS: 'Function not implemented',
  ELOOP: 'Too many levels of symbolic links',
  EMSGSIZE: 'Message too long',
  EPROTONOSUPPORT: 'Protocol not supported',
  EOPNOTSUPP: 'Operation not supported',
  EAFNOSUPPORT: 'Address family not supported by protocol',
  EADDRINUSE: 'Address already in use',
  EADDRNOTAVAIL: 'Cannot assign requested address',
  ENETDOWN: 'Network is down',
  ENETUNREACH: 'Network is unreachable',
  ENOBUFS: 'No buffer space available',
  ETIMEDOUT: 'Connection timed out',
  EHOSTUNREACH: 'No route to host',
}

/**
 * The second names of the error numbers that have two names. weft uses the first names, EAGAIN and EOPNOTSUPP, as the
 * kernel's sources do.
 */
const SECOND_NAMES: ReadonlySet<string> = new Set(['EWOULDBLOCK', 'ENOTSUP'])
const NAMES: ReadonlyMap<number, string> = new Map(
  Object.entries(constants.errno).flatMap(([name, number]) => (SECOND_NAMES.has(name) ? [] : [[number, name]])),
)

/** Returns the name of an error number, such as `EEXIST` for 17; for an unknown number the number as text. */
export const errnoName = (errno: number): string => NAMES.get(errno) ?? String(errno)

/** Returns the text for the name of an error number, such as `File exists`; for an unknown name `error NAME`. */
export const errnoText = (name: string): string => TEXTS[name] ?? `error ${name}`

// gce.ts - the backend that writes its routes into the network of a Google Compute Engine instance.

import type { Backend, BackendParts } from '../contract.ts'
import { createFabricBackend } from './fabric.ts'
import { GcePublisher } from './fabric/gce-publisher.ts'

export const createGceBackend = (parts: BackendParts<'gce'>): Backend =>
  createFabricBackend('gce', parts, (place) => new GcePublisher(place))

// ali-vpc.ts - the backend that writes its routes into route tables of Alibaba Cloud's VPC.

import type { Backend, BackendParts } from '../contract.ts'
import { createFabricBackend } from './fabric.ts'
import { AliPublisher } from './fabric/ali-publisher.ts'

export const createAliVpcBackend = (parts: BackendParts<'ali-vpc'>): Backend =>
  createFabricBackend('ali-vpc', parts, (place) => new AliPublisher(parts.settings, parts.settings.routeTables, place))
